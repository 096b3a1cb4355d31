"""Groups that routing keeps to are read of the config of every family with experts."""

import json

import pytest
from small_configs import TINY

import costmodel as cm


@pytest.mark.parametrize(
    "family", [name for name, (_, config) in TINY.items() if "num_experts_per_tok" in config]
)
@pytest.mark.parametrize("groups", ["n_group", "num_expert_group"])
def test_groups_are_read_of_every_family(family, groups, tmp_path):
    """Whoever writes them; one group, or all of them, is no limit, and neither is greedy choice."""

    def read(**more):
        path = tmp_path / "config.json"
        shape = {key: value for key, value in TINY[family][1].items() if key not in ("n_group", "topk_group")}
        path.write_text(json.dumps({"model_type": family, **shape, **more}))
        model = cm.load_model(str(path))
        return model.expert_groups, model.groups_per_token

    assert read(**{groups: 2, "topk_group": 1}) == (2, 1)
    assert read(**{groups: 2, "topk_group": 2}) == (0, 0)
    assert read(**{groups: 1, "topk_group": 1}) == (0, 0)
    assert read(**{groups: 2, "topk_group": 1, "topk_method": "greedy"}) == (0, 0)
