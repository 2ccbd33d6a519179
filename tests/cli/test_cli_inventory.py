"""`keras-vit list` and `info`: the models, their weights and costs."""

import pathlib
import re

import pytest
from command_line import error_of, run
from families import FAMILIES

import keras_vit
from keras_vit.checkpoints.foreign_names import task_models
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli import inventory
from keras_vit.compat.initial_values import build_deferred
from keras_vit.models import build_model
from keras_vit.models.costs import count_macs
from keras_vit.variants import VARIANTS


class TestListAndInfo:
    def test_list_shows_each_model_with_its_size_cost_and_releases(self, capsys):
        """That of all models is run by test_readme.py."""
        code, out, err = run(capsys, "list", "ViT-[TLG]*")
        assert (code, err) == (0, "")
        rows = [re.split(r"\s{2,}", line) for line in out.splitlines()]
        assert rows[0] == ["model", "parameters", "pixels", "GMAC", "weights"]
        assert [row[0] for row in rows[1:]] == keras_vit.list_models("ViT-[TLG]*")
        # Parameters as golden in test_zoo.py, costs as computed from the official code
        assert ["ViT-Ti_16", "5,717,416", "224", "1.25", "augreg, augreg+imagenet2012"] in rows
        assert ["ViT-L_32", "306,535,400", "224", "15.38", "imagenet21k, imagenet21k+imagenet2012, sam"] in rows
        assert ["ViT-G_14", "1,844,440,680", "224", "483.75", "-"] in rows
        columns = {line.rindex(row[2]) + len(row[2]) for line, row in zip(out.splitlines(), rows, strict=True)}
        assert len(columns) == 1, "flush right"

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in ("ViT-Ti_16", "DINOv3-S_16", "Swin-T") else pytest.mark.slow)
            for name in keras_vit.list_models()
        ],
    )
    def test_the_stored_costs_are_those_of_the_models(self, name):
        model, _ = build_deferred(lambda: keras_vit.create_model(name))
        row = VARIANTS[name]
        assert (row.parameters, row.macs) == (model.count_params(), count_macs(model))

    def test_list_of_weights_names_files(self, capsys):
        _, out, _ = run(capsys, "list", "ViT-B_1*", "--weights")
        assert "imagenet21k+imagenet2012/ViT-B_16-224.npz" in out and "ViT-B_32" not in out

    def test_list_of_weights_states_licences(self, capsys):
        _, out, _ = run(capsys, "list", "DINOv3-S_16", "--weights")
        assert "hf://facebook/dinov3-vits16-pretrain-lvd1689m" in out and "DINOv3 licence, gated" in out

    def test_info_of_a_file_builds_no_model(self, capsys, monkeypatch):
        monkeypatch.setattr(inventory, "build_model", None)
        folder = pathlib.Path(__file__).parents[1] / "golden" / "dinov2_hf_cls"
        code, out, err = run(capsys, "info", str(folder))
        values = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
        assert (code, err) == (0, "")
        assert (values["layout"], values["num_heads"], values["pooling"]) == ("huggingface", "3", "token_gap")
        assert values["licence"] == "Apache-2.0" and "no published model has these sizes" in values["note 1"]

    def test_info_of_a_file_of_save_weights_shows_its_config(self, capsys, tmp_path):
        config = FAMILIES["Swin"].config.replace(mlp_ratio=2.0)
        keras_vit.save_weights(build_model(config), tmp_path / "a.safetensors", "timm")
        code, out, err = run(capsys, "info", str(tmp_path / "a.safetensors"))
        values = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
        assert (code, err) == (0, "")
        assert (values["layout"], values["mlp_ratio"], values["depths"]) == ("timm", "2.0", "2 2")

    def test_list_without_a_match(self, capsys):
        assert "PATTERN 'xyz*' matches none of the names; " in error_of(run(capsys, "list", "xyz*"))
        assert error_of(run(capsys, "list", "xyz", "--task", "depth")).endswith(
            f"; keras-vit list --task any shows all {len(keras_vit.list_models(task='any'))}"
        )

    @pytest.mark.parametrize("arguments", [("--task", "masks"), ("rd16", "--task", "any"), ("clipseg",)])
    def test_list_of_task_models(self, capsys, arguments):
        """Where no other model has the name, --task is not needed."""
        code, out, err = run(capsys, "list", *arguments)
        assert (code, err) == (0, "")
        rows = [re.split(r"\s{2,}", line) for line in out.splitlines()]
        assert rows[0] == ["model", "class", "task", "parameters", "licence"]
        assert ["CIDAS/clipseg-rd16", "CLIPSeg", "masks", "149,884,417", "Apache-2.0 (unconfirmed)"] in rows

    @pytest.mark.parametrize("name", ["Intel/dpt-large", "facebook/sam-vit-base"])
    def test_info_of_a_task_model_downloads_nothing(self, capsys, name):
        code, out, err = run(capsys, "info", name)
        values = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
        assert (code, err, values["model"], values["open"]) == (0, "", name, f"keras_vit.load('hf://{name}')")
        assert values["parameters"] == str(task_models()[name]["parameters"])

    def test_list_searches_the_names_of_other_libraries(self, capsys):
        _, out, _ = run(capsys, "list", "google/vit-base-patch16-*")
        assert [line.split()[0] for line in out.splitlines()] == ["model", "ViT-B_16"]

    def test_info_without_weights(self, capsys):
        code, out, err = run(capsys, "info", "ViT-B_16", "--image-size", "384", "--classes", "10")
        values = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.partition("\n\n")[0].splitlines())
        assert (code, err) == (0, "")
        # Table of FACTS: 85,798,656 without head at 224; 24 * 24 - 14 * 14 more positions, a head of ten
        assert values["parameters"] == f"{85_798_656 + 768 * (24**2 - 14**2) + 7690:,}"
        assert values["image_size"] == "384 384" and values["preprocessing size"] == "384 384"
        assert values["epsilon"] == "1e-06" and values["labels"] == "None"

    def test_info_shows_stages_that_add_up(self, capsys):
        code, out, err = run(capsys, "info", "ViT-B_16")
        assert (code, err) == (0, "")
        values, stages = out.split("\n\n")
        rows = [re.split(r"\s{2,}", line) for line in stages.splitlines()]
        assert rows[0] == ["layer", "output", "parameters", "multiply-accumulates"]
        names = ["patch_encoder", "class_token", "position_embs", "block_00 ... block_11", "encoder_norm", "pooling"]
        assert [row[0] for row in rows[1:]] == [*names, "head"]
        # 14 x 14 patches of 16 x 16 x 3 numbers to 768; 12 blocks of 4 D^2 + 2 D M weights, 197 tokens
        assert rows[1][1:] == ["196 x 768", f"{(16 * 16 * 3 + 1) * 768:,}", f"{196 * 16 * 16 * 3 * 768:,}"]
        projections, attention = 197 * (4 * 768**2 + 2 * 768 * 3072), 2 * 197**2 * 768
        assert rows[4][1:] == ["197 x 768", f"{12 * 7_087_872:,}", f"{12 * (projections + attention):,}"]
        for column, total in ((2, "parameters"), (3, "multiply-accumulates")):
            stated = re.search(rf"^{total} +([\d,]+)$", values, re.MULTILINE)[1]
            assert sum(int(row[column].replace(",", "")) for row in rows[1:]) == int(stated.replace(",", ""))

    def test_list_of_recipes(self, capsys):
        code, out, err = run(capsys, "list", "*finetune/p*", "--recipes")
        assert (code, err) == (0, "")
        rows = [re.split(r"\s{2,}", line, maxsplit=3) for line in out.splitlines()]
        assert rows[0] == ["recipe", "length", "batch", "source"]
        names = ["vit/finetune/pets", "augreg/finetune/pets-500", "augreg/finetune/pets-2500"]
        assert [row[0] for row in rows[1:]] == names
        assert rows[3][1:3] == ["2,500 steps", "512"] and rows[1][3].startswith("arXiv 2010.11929, Table 4")

    def test_info_reports_how_weights_fit(self, here, capsys):
        code, out, err = run(capsys, "info", "ViT-Ti_16", "--weights", "ViT-Ti_16.npz", "--image-size", "96")
        assert code == 0
        assert "Loaded 200 arrays of ViT-Ti_16.npz" in err and "14 x 14 -> 6 x 6" in err
        assert "Loaded" not in out and "tench, goldfish, " in out and "(1000)" in out

    def test_info_of_published_weights(self, here, capsys, monkeypatch):
        file = list_releases("ViT-Ti_16")[-1].path  # of 384 pixels, as published; the content has 224
        (here / "bucket" / file).parent.mkdir(parents=True)
        (here / "bucket" / file).write_bytes((here / "ViT-Ti_16.npz").read_bytes())
        monkeypatch.setenv("KERAS_VIT_WEIGHTS_URL", (here / "bucket").as_uri())
        monkeypatch.setenv("KERAS_HOME", str(here / "cache"))
        words = ["--weights", "augreg+imagenet2012", "--image-size", "64"]
        code, out, err = run(capsys, "info", "ViT-Ti_16", *words)
        assert code == 0 and "Loaded 200 arrays" in err
        assert "Downloading file:" in err and "Downloading" not in out

    def test_info_of_a_saved_model_with_changes(self, here, capsys):
        code, out, err = run(capsys, "info", "model.keras", "--image-size", 32, "--gelu", "erf", "--classes", 7)
        assert code == 0
        assert re.search(r"^gelu +erf$", out, re.MULTILINE) and re.search(r"^classes +7$", out, re.MULTILINE)
        assert "2 x 2 -> 4 x 4" in err and "the file states gelu='tanh'" in err
