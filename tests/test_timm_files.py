"""`python -m benchmarks timm_files`: tiny copies of published files of timm are loaded and compared with timm."""

import pytest

from benchmarks import __main__ as program
from benchmarks import timm_files

# one of each kind of positions, norms and heads
SAMPLE = (
    "beit3_base_patch16_224.in22k_ft_in1k",
    "naflexvit_base_patch16_radio_v3.c_radio",
    "samvit_base_patch16.sa1b",
    "swin_s3_small_224.ms_in1k",
    "test_vit3.r160_in1k",
    "vit_base_patch16_rpn_224.sw_in1k",
    "vit_base_patch16_lingbot.robbyant",
    "vit_base_patch16_rope_reg1_gap_256.sbb_in1k",
    "vit_dpwee_patch16_reg1_gap_256.sbb_in1k",
    "vit_gigantic_patch14_clip_378.metaclip2_worldwide",
    "vit_intern300m_patch14_448.ogvl_dist",
    "vit_relpos_medium_patch16_cls_224.sw_in1k",
    "vit_small_patch16_rope_ape_224.naver_in1k",
    "vit_srelpos_small_patch16_224.sw_in1k",
)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(timm_files, "is_installed", lambda name: name != "timm")
    with pytest.raises(SystemExit, match="missing: timm$"):
        list(timm_files.run(program.Options()))


@pytest.mark.slow
def test_keras_vit_computes_what_timm_computes():
    for name in timm_files.NEEDED:
        pytest.importorskip(name, reason=f"{name}, which computes the expected outputs, is not installed")
    table = timm_files.table(SAMPLE)
    assert [row for row in table.rows if not row[2][0].isdigit() or float(row[2]) > 1e-5] == []
