"""Names of checkpoints: templates, and the step that a name tells."""

from __future__ import annotations

import pytest

from keras_turbo.checkpoint.layout import check_name, step_in
from keras_turbo.checkpoint.options import NameTemplate

VALUES = {"epoch": 2, "step": 7, "batches": 9, "val_loss": 0.5, "val/acc": 0.25}


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("step-{step:08d}", "step-00000007"),
        ("{epoch:03d}-{batches}-{val_loss:.2f}", "002-9-0.50"),
        ("größe {step}", "größe 7"),
        ("{val/acc}", "0.25"),
        ("{{{step}}}", "{7}"),
    ],
)
def test_a_template_is_filled(template, name):
    assert NameTemplate(template).name(VALUES) == name


def test_the_default_keeps_optimizer_steps_and_batches_apart():
    assert NameTemplate().name(VALUES) == "step-00000007"
    assert NameTemplate("{step}-of-{batches}").name(VALUES) == "7-of-9"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("best", "all be named 'best'"),
        ("{step", "as for str.format"),
        ("{}", "must be the name of a value"),
        ("{0}", "must be the name of a value"),
        ("{step.real}", "must be the name of a value"),
        ("{step[0]}", "must be the name of a value"),
        ("../{step}", "without folders"),
        ("/tmp/{step}", "without folders"),
        (".{step}", "must not begin with a dot"),
        ("{step:spam}", "can't be filled"),
        ("x" * 300 + "{step}", "at most 200 bytes"),
        (7, "must be text"),
    ],
)
def test_a_template_that_can_not_be(template, message):
    with pytest.raises(ValueError, match=message):
        NameTemplate(template)


def test_an_unknown_metric_lists_what_there_is():
    template = NameTemplate("{epoch}-{val_los}")
    assert template.metric_keys() == ("val_los",)
    with pytest.raises(
        ValueError, match="'val_los', which no save will know.*'epoch', 'step', 'batches', 'loss', 'val_loss'"
    ):
        template.check_metrics(["loss", "val_loss"])
    with pytest.raises(ValueError, match="'val_los', of which there is no value"):
        template.name(VALUES)
    NameTemplate("{epoch}-{val_loss}").check_metrics(["loss", "val_loss"])


@pytest.mark.parametrize("value", ["../../x", "a/b", " ", ""])
def test_a_value_can_not_lead_out_of_the_directory(value):
    with pytest.raises(ValueError, match="name"):
        NameTemplate("{tag}").name({"tag": value})


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\\b", ".hidden", "x ", 3, None])
def test_a_name_that_no_checkpoint_can_have(name):
    with pytest.raises(ValueError, match="name"):
        check_name(name)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-00001234", 1234),
        ("step_7", 7),
        ("step7", 7),
        ("epoch-2-step-50-loss-0.25", 50),
        ("2-0.5", None),
        ("footstep-3", None),
        ("step-1-step-2", None),
        ("step-", None),
    ],
)
def test_the_step_in_a_name(name, step):
    assert step_in(name) == step
