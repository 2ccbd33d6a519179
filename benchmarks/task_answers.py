"""Compare `keras_vit.predict` of small task models with transformers, from the photograph to pixels of the photograph.

It needs `pip install -e '.[tensorflow,bench]'` and scipy, and downloads nothing. `--real-data` is a folder with
photographs in `pictures/`; each keeps its own size. Models have random weights. transformers' own image processor (on
Pillow), model and post-processing give the expected answers, on the same files.
"""

import tempfile

import numpy as np

from benchmarks.report import Table, is_installed
from benchmarks.transformers_files import SAM, TEXT, TOWER, Model, save

NEEDED = ("torch", "transformers", "scipy")
NOTE = (
    "Largest differences from transformers {version} for {count} photographs in their own sizes: depth relative to its "
    "range, boxes and keypoints in pixels of the photograph, scores, and the share of pixels whose segment or mask is "
    "another."
)
NECK = {"neck_hidden_sizes": [8, 12, 16, 20], "fusion_hidden_size": 16}
VIT = {**TOWER, "num_hidden_layers": 4}
DINO = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
QUERIES = {
    **DINO,
    "image_size": 64,
    "patch_size": 16,
    "mlp_ratio": 2,
    "num_blocks": 2,
    "num_queries": 8,
    "num_labels": 4,
    "num_register_tokens": 2,
}
PAIR = {"vision_config": {**TOWER, "image_size": 96}, "text_config": TEXT, "projection_dim": 64}
PARTS = {
    "vision_config": {**SAM, "image_size": 128, "output_channels": 32, "num_pos_feats": 16},
    "prompt_encoder_config": {"hidden_size": 32, "image_size": 128, "patch_size": 16, "mask_input_channels": 8},
    "mask_decoder_config": {"hidden_size": 32, "mlp_dim": 48, "num_attention_heads": 2, "iou_head_hidden_dim": 16},
}
CLASS_HEADS = ("class_predictor", "head.head.4")
IDS = np.array([[1, 5, 6, 98] + [0] * 12, [1, 7, 98, 0] + [0] * 12])
PERSONS = [[10.5, 20, 120, 240], [200, 100, 90, 60]]  # left, top, width, height
POINTS = [[[100.0, 80.0], [60.0, 200.5]], [[5.0, 250.0], [200.0, 10.0]]]


def run(options):
    """Yield the table of all kinds of task models."""
    if missing := [name for name in NEEDED if not is_installed(name)]:
        raise SystemExit(f"task_answers needs {', '.join(NEEDED)}; missing: {', '.join(missing)}")
    if options.real_data is None:
        raise SystemExit("task_answers needs --real-data, a folder with photographs in pictures/")
    yield table(sorted((options.real_data / "pictures").iterdir()))


def table(paths):
    """Return the table for some photographs."""
    import transformers
    from PIL import Image

    images = [Image.open(path).convert("RGB") for path in paths]
    rows = [[name, *difference] for name, compare in COMPARED.items() for difference in compare(images)]
    note = NOTE.format(version=transformers.__version__, count=len(images))
    return Table("Answers of task models", note, ("model", "answer", "largest difference"), rows)


def _opened(model, processor):
    """Return our model, that of transformers, and its image processor, all from one folder."""
    import keras_vit

    with tempfile.TemporaryDirectory() as folder:
        theirs = save(model, folder)
        for name, values in [*theirs.named_parameters(), *theirs.named_buffers()]:
            if name == "attn_mask_probs":
                values.data.zero_()
            elif name == "query.weight":
                values.data *= 30
            elif name.startswith(CLASS_HEADS) and len(values) > 1:  # every class has the highest score somewhere
                values.data = 30 * (values - values.mean(-1, keepdim=True)).detach() if values.ndim > 1 else 0 * values
        theirs.save_pretrained(folder)
        processor.save_pretrained(folder)
        return keras_vit.load(folder), theirs


def _outputs(theirs, inputs):
    import torch

    with torch.no_grad():
        return theirs(**{name: value for name, value in inputs.items() if torch.is_tensor(value)})


def _worst(pairs):
    """Return the largest difference of pairs of arrays."""
    differences = [np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")).max(initial=0) for a, b in pairs]
    return f"{max(differences):.1e}"


def _unequal(pairs):
    """Return the largest share of pixels that differ."""
    return f"{max(float((np.asarray(a) != np.asarray(b)).mean()) for a, b in pairs):.1e}"


def _size(image):
    return image.height, image.width


def _processor(name, **settings):
    import transformers

    return getattr(transformers, f"{name}ImageProcessorPil")(**settings)


def _depth_anything(images):
    import transformers

    tower = {**DINO, "image_size": 56, "patch_size": 14}
    backbone = transformers.Dinov2Config(**tower, out_indices=[1, 2, 3, 4], reshape_hidden_states=False)
    settings = {"size": {"height": 126, "width": 126}, "keep_aspect_ratio": True, "ensure_multiple_of": 14}
    arguments = {"backbone_config": backbone, "reassemble_hidden_size": 64, "head_hidden_size": 8, **NECK}
    yield from _depth(images, Model("DepthAnythingForDepthEstimation", arguments), settings)


def _dpt(images):
    arguments = {**VIT, "backbone_out_indices": [0, 1, 2, 3], "readout_type": "project", **NECK}
    settings = {"size": {"height": 96, "width": 96}, "keep_aspect_ratio": False, "ensure_multiple_of": 32}
    yield from _depth(images, Model("DPTForDepthEstimation", arguments), settings)


def _dpt_dinov2(images):
    import transformers

    backbone = transformers.Dinov2Config(
        **DINO, image_size=56, patch_size=14, out_indices=[1, 2, 3, 4], reshape_hidden_states=False
    )
    of_head = {"add_projection": True, **NECK, "fusion_hidden_size": 256}
    arguments = {"backbone_config": backbone, "readout_type": "project", **of_head}
    bytes_of = {"image_mean": [123.675, 116.28, 103.53], "image_std": [58.395, 57.12, 57.375], "do_rescale": False}
    settings = {"do_resize": False, "do_pad": True, "size_divisor": 14, **bytes_of}
    yield from _depth(images, Model("DPTForDepthEstimation", arguments), settings)


def _dpt_segmentation(images):
    import keras_vit

    arguments = {**VIT, "backbone_out_indices": [0, 1, 2, 3], "readout_type": "project", "num_labels": 5, **NECK}
    processor = _processor("DPT", size={"height": 96, "width": 96}, ensure_multiple_of=32)
    ours, theirs = _opened(Model("DPTForSemanticSegmentation", arguments), processor)
    pairs = []
    for image, found in zip(images, keras_vit.predict(ours, images), strict=True):
        outputs = _outputs(theirs, processor(image, return_tensors="pt"))
        [expected] = processor.post_process_semantic_segmentation(outputs, target_sizes=[_size(image)])
        pairs.append((found.labels, expected))
    yield "semantic segments", _unequal(pairs)


def _depth(images, model, settings):
    import keras_vit

    processor = _processor("DPT", **settings)
    ours, theirs = _opened(model, processor)
    pairs = []
    for image, found in zip(images, keras_vit.predict(ours, images), strict=True):
        outputs = _outputs(theirs, processor(image, return_tensors="pt"))
        [answer] = processor.post_process_depth_estimation(outputs, target_sizes=[_size(image)])
        expected = answer["predicted_depth"].numpy()
        pairs.append((found.values / np.ptp(expected), expected / np.ptp(expected)))
    yield "depth", _worst(pairs)


def _eomt(images):
    import keras_vit

    kinds = {"panoptic": {"threshold": 0.2}, "instances": {"threshold": 0.1}, "semantic": {}}
    for split in (False, True):
        size = {"shortest_edge": 64, "longest_edge": None if split else 64}
        processor = _processor("Eomt", size=size, do_split_image=split, do_pad=not split)
        ours, theirs = _opened(Model("EomtForUniversalSegmentation", QUERIES), processor)
        for kind, options in kinds.items() if not split else [("semantic", {})]:
            pairs = []
            for image, found in zip(images, keras_vit.predict(ours, images, segments=kind, **options), strict=True):
                inputs = processor(image, return_tensors="pt")
                outputs = _outputs(theirs, inputs)
                outputs.patch_offsets = inputs.get("patch_offsets")
                if kind == "semantic" and not split:  # transformers does not cut off the padding
                    continue
                name = f"post_process_{kind.replace('instances', 'instance')}_segmentation"
                [answer] = getattr(processor, name)(outputs, target_sizes=[_size(image)], **options)
                expected = answer if kind == "semantic" else answer["segmentation"]
                pairs.append((found.labels if kind == "semantic" else found.ids, expected))
            if pairs:
                yield f"{kind} segments", _unequal(pairs)


def _yolos(images):
    import keras_vit

    processor = _processor("Yolos", size={"shortest_edge": 96, "longest_edge": 160})
    arguments = {**VIT, "image_size": [96, 160], "num_detection_tokens": 9, "num_labels": 5}
    ours, theirs = _opened(Model("YolosForObjectDetection", arguments), processor)
    boxes, scores = [], []
    for image, found in zip(images, keras_vit.predict(ours, images, threshold=0.0), strict=True):
        outputs = _outputs(theirs, {"pixel_values": processor(image, return_tensors="pt")["pixel_values"]})
        [answer] = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=[_size(image)])
        boxes.append((found.boxes, answer["boxes"]))
        scores.append((found.scores, answer["scores"]))
    yield "boxes", _worst(boxes)
    yield "scores", _worst(scores)


def _owl(name):
    def compare(images):
        import torch

        import keras_vit

        side = {"height": 96, "width": 96}
        processor = _processor(name, size=side)
        ours, theirs = _opened(Model(f"{name}ForObjectDetection", PAIR), processor)
        ours.embed_text = lambda text, embed=ours.embed_text: embed(IDS)  # there is no tokenizer of random weights
        boxes, scores = [], []
        given = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor((IDS > 0).astype("int64"))}
        for image, found in zip(images, keras_vit.predict(ours, images, text=["a", "b"], threshold=0.0), strict=True):
            outputs = _outputs(theirs, {**processor(image, return_tensors="pt"), **given})
            sizes = torch.tensor([_size(image)])
            [answer] = processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)
            boxes.append((found.boxes, answer["boxes"]))
            scores.append((found.scores, answer["scores"]))
        yield "boxes", _worst(boxes)
        yield "scores", _worst(scores)

    return compare


def _vitpose(images):
    import transformers

    import keras_vit

    backbone = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2, "out_indices": [2]}
    backbone = transformers.VitPoseBackboneConfig(**backbone, image_size=[64, 48], patch_size=[16, 16])
    processor = _processor("VitPose", size={"height": 64, "width": 48})
    ours, theirs = _opened(
        Model("VitPoseForPoseEstimation", {"backbone_config": backbone, "num_labels": 17}), processor
    )
    edges = [[x, y, x + width, y + height] for x, y, width, height in PERSONS]
    places, scores = [], []
    found = keras_vit.predict(ours, images, boxes=[edges] * len(images), blur="transformers")
    for image, answer in zip(images, found, strict=True):
        outputs = _outputs(theirs, processor(image, boxes=[PERSONS], return_tensors="pt"))
        [expected] = processor.post_process_pose_estimation(outputs, boxes=[PERSONS])
        sure = [one["scores"].numpy() > 0.01 for one in expected]  # a flat heatmap has its peak anywhere
        places += [(a[k], e["keypoints"][k]) for a, e, k in zip(answer.xy, expected, sure, strict=True)]
        scores += [(a, e["scores"]) for a, e in zip(answer.scores, expected, strict=True)]
    yield "keypoints", _worst(places)
    yield "scores", _worst(scores)


def _sam(images):
    import transformers

    import keras_vit

    processor = _processor("Sam", size={"longest_edge": 128}, pad_size={"height": 128, "width": 128})
    whole = transformers.SamProcessor(processor)
    ours, theirs = _opened(Model("SamModel", PARTS), processor)
    masks, scores = [], []
    for image, found in zip(images, keras_vit.predict(ours, images, points=[POINTS] * len(images)), strict=True):
        inputs = whole(image, input_points=[POINTS], return_tensors="pt")
        outputs = _outputs(theirs, {name: inputs[name].float() for name in ("pixel_values", "input_points")})
        given = outputs.pred_masks, inputs["original_sizes"], inputs["reshaped_input_sizes"]
        [answer] = processor.post_process_masks(*given, pad_size={"height": 128, "width": 128})
        best = outputs.iou_scores[0].argmax(-1)
        masks.append((found.masks, answer[range(len(best)), best]))
        scores.append((found.scores, outputs.iou_scores[0].max(-1).values))
    yield "masks", _unequal(masks)
    yield "scores", _worst(scores)


def _clipseg(images):
    import torch
    import transformers

    import keras_vit

    processor = transformers.ViTImageProcessorPil(size={"height": 96, "width": 96})
    settings = {"reduce_dim": 8, "extract_layers": [0, 1], "decoder_num_attention_heads": 2}
    arguments = {**PAIR, **settings, "decoder_intermediate_size": 16}
    ours, theirs = _opened(Model("CLIPSegForImageSegmentation", arguments), processor)
    ours.embed_text = lambda text, embed=ours.embed_text: embed(IDS)
    pairs = []
    for image, found in zip(images, keras_vit.predict(ours, images, text=["a", "b"]), strict=True):
        pixels = processor(image, return_tensors="pt")["pixel_values"].expand(2, -1, -1, -1)
        given = {"input_ids": torch.tensor(IDS), "attention_mask": torch.tensor((IDS > 0).astype("int64"))}
        logits = _outputs(theirs, {"pixel_values": pixels, **given}).logits[:, None]
        resized = torch.nn.functional.interpolate(logits, size=_size(image), mode="bilinear", align_corners=False)
        pairs.append((found.masks, resized[:, 0] > 0))
    yield "masks", _unequal(pairs)


COMPARED = {
    "Depth Anything": _depth_anything,
    "DPT": _dpt,
    "DPT on DINOv2": _dpt_dinov2,
    "DPT, segmentation": _dpt_segmentation,
    "EoMT": _eomt,
    "YOLOS": _yolos,
    "OWL-ViT": _owl("OwlViT"),
    "OWLv2": _owl("Owlv2"),
    "ViTPose": _vitpose,
    "SAM": _sam,
    "CLIPSeg": _clipseg,
}
