"""`keras-vit demo`: the demo page in the browser."""

import pathlib

from keras_vit import demo as demo_room
from keras_vit.cli.models import check_without_model, open_model


def demo(args):
    """Print the address of the page and serve it until Ctrl-C."""
    model = open_model(args) if args.model else check_without_model(args)
    weights = pathlib.PurePath(args.weights or args.model or "").name
    page = demo_room.launch(
        model,
        weights,
        host=args.host,
        port=args.port,
        browser=not args.no_browser,
        share=args.share,
        block=False,
    )
    print(page.share_url or page.local_url, flush=True)
    demo_room.wait(page)
