"""What wrappers of modules put in front of names, in any nesting: left out where every name of the module carries it."""

import numpy as np
import pytest

from canon import formats
from canon.formats.common_prefix import unwrapped

FRONT = "every name begins with {!r}, which is left out"


@pytest.mark.parametrize(
    ("names", "wanted", "notes"),
    [
        (["a.w", "b.w"], ["a.w", "b.w"], ()),
        (["module.a.w", "module.b.w"], ["a.w", "b.w"], (FRONT.format("module."),)),
        (["_orig_mod.module.a.w", "_orig_mod.module.b"], ["a.w", "b"], (FRONT.format("_orig_mod.module."),)),
        (["module.module.a.w"], ["a.w"], (FRONT.format("module.module."),)),
        (["module.a.w", "b.w"], ["module.a.w", "b.w"], ()),
        (["module.a.w", "_orig_mod.b.w"], ["module.a.w", "_orig_mod.b.w"], ()),
        (["module.w", "w"], ["module.w", "w"], ()),
        (["module", "module.w"], ["module", "module.w"], ()),
        (["model.a.w", "model.b.w"], ["model.a.w", "model.b.w"], ()),
        (["modules.a.w", "modules.b.w"], ["modules.a.w", "modules.b.w"], ()),
        (["f.module.0.w", "f.module.1.w", "c.w"], ["f.0.w", "f.1.w", "c.w"],
         ("wrappers are left out of names: 'module' under 'f'",)),
        (["f.module.0.w", "f.1.w"], ["f.module.0.w", "f.1.w"], ()),
        (["f.module.w", "f.b"], ["f.module.w", "f.b"], ()),
        (["module.f._orig_mod.0.w", "module.c.w"], ["f.0.w", "c.w"],
         (FRONT.format("module."), "wrappers are left out of names: '_orig_mod' under 'f'")),
        ([f"l.{i}._checkpoint_wrapped_module.w" for i in range(5)], [f"l.{i}.w" for i in range(5)],
         ("wrappers are left out of names: " + ", ".join(f"'_checkpoint_wrapped_module' under 'l.{i}'" for i in range(3))
          + " and 2 more",)),
        (["_fsdp_wrapped_module.a._fsdp_wrapped_module.w"], ["a.w"],
         (FRONT.format("_fsdp_wrapped_module."), "wrappers are left out of names: '_fsdp_wrapped_module' under 'a'")),
        ([], [], ()),
    ],
)  # fmt: skip
def test_names(names, wanted, notes):
    found, said = unwrapped({name: i for i, name in enumerate(names)})
    assert list(found.items()) == [(name, i) for i, name in enumerate(wanted)]
    assert said == notes


def test_counters_that_are_no_weights_do_not_hide_a_prefix_and_a_copy_has_it_again(tmp_path):
    rng = np.random.default_rng(0)
    plain = {
        "a.weight": rng.random((4, 3)),
        "a.bias": rng.random(4),
        "b.weight": rng.random((2, 4)),
        "c.num_batches_tracked": 3,
    }
    held = {f"module.{name}": np.array(values) for name, values in plain.items()}
    held["epoch"] = np.array(7)
    np.savez(tmp_path / "a.npz", **held)
    run = formats.read(tmp_path / "a.npz")
    assert set(run.network.tensors) == {"a.weight", "a.bias", "b.weight"}
    assert FRONT.format("module.") in run.notes
    moved = run.with_network(run.network.with_tensors({n: -t for n, t in run.network.tensors.items()}))
    formats.write(moved, tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as made:
        assert list(made) == list(held)
        np.testing.assert_array_equal(made["module.a.weight"], -held["module.a.weight"])
        assert made["epoch"] == 7
