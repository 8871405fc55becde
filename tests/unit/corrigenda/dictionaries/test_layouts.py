import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from malformed_parts import refused
from safetensors.torch import save_file

from corrigenda.dictionaries.dictionary import FeatureDictionary
from corrigenda.dictionaries.layouts import read_dictionary, write_dictionary
from corrigenda.errors import DamagedFileError

N, WIDTH = 6, 4
X = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(1))


def parts() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    return tuple(torch.randn(size, generator=draw) for size in ((N, WIDTH), (N,), (N, WIDTH), (WIDTH,), (WIDTH, WIDTH)))


def sparsify(folder: Path, change: Any = None, name: str = "layers.2.mlp", **said: Any) -> Path:
    encoder, bias, decoder, shift, skip = parts()
    tensors = {"encoder.weight": encoder, "encoder.bias": bias, "W_dec": decoder, "b_dec": shift}
    if said.get("skip_connection"):
        tensors["W_skip"] = skip
    (folder / name).mkdir()
    save_file({**tensors, **(change or {})}, folder / name / "sae.safetensors")
    base = {"expansion_factor": 32, "normalize_decoder": True, "num_latents": N, "k": 2, "multi_topk": False}
    base |= {"skip_connection": False, "transcode": False, "d_in": WIDTH}
    (folder / name / "cfg.json").write_text(json.dumps(base | said))
    return folder / name


def saelens(folder: Path, more: tuple[str, ...] = (), **said: Any) -> Path:
    encoder, bias, decoder, shift, skip = parts()
    tensors = {"W_enc": encoder.T.contiguous(), "b_enc": bias, "W_dec": decoder, "b_dec": shift}
    tensors |= {name: {"threshold": bias.abs(), "W_skip": skip, "scaling_factor": bias.clone()}[name] for name in more}
    save_file(tensors, folder / "sae_weights.safetensors")
    base = {"architecture": "standard", "hook_name": "blocks.2.hook_mlp_out", "d_in": WIDTH, "d_sae": N}
    (folder / "cfg.json").write_text(json.dumps(base | {"normalize_activations": "none"} | said))
    return folder


def test_sparsify_by_hand(tmp_path: Path) -> None:
    encoder, bias, decoder, shift, _ = parts()
    one = read_dictionary(sparsify(tmp_path))
    scores = ((X - shift) @ encoder.T + bias).relu()
    kept = scores * (scores >= scores.sort(dim=-1, descending=True).values[:, 1:2])
    assert (one.layer, one.reads, one.k) == (2, "output", 2)
    assert torch.allclose(one(X), kept @ decoder + shift, atol=1e-6)


def test_skip_transcoders_of_sparsify_by_hand(tmp_path: Path) -> None:
    encoder, bias, decoder, shift, skip = parts()
    place = sparsify(tmp_path, transcode=True, skip_connection=True, k=N)
    one = read_dictionary(tmp_path, layer=2)
    assert (one.reads, one.name) == ("input", str(place))
    assert torch.allclose(one(X), (X @ encoder.T + bias).relu() @ decoder + shift + X @ skip.T, atol=1e-5)


@pytest.mark.parametrize(
    "said", [{}, {"transcode": True, "skip_connection": True}, {"transcode": True}], ids=["sae", "skip", "transcoder"]
)
def test_written_as_it_was_read(tmp_path: Path, said: dict[str, Any]) -> None:
    one = read_dictionary(sparsify(tmp_path, **said))
    place = write_dictionary(one, tmp_path / "again")
    assert place.name == "layers.2.mlp"
    two = read_dictionary(place)
    assert two.fingerprint == one.fingerprint
    assert torch.equal(one(X), two(X))


def test_what_is_not_centred_is_written_so_that_it_says_the_same(tmp_path: Path) -> None:
    one = dataclasses.replace(read_dictionary(sparsify(tmp_path)), centred=False)
    assert torch.allclose(read_dictionary(write_dictionary(one, tmp_path / "again"))(X), one(X), atol=1e-5)
    refused(ValueError, "TopK alone, and this has no k", write_dictionary, FeatureDictionary(0, *parts()[:4]), tmp_path)


def test_saelens_by_hand(tmp_path: Path) -> None:
    encoder, bias, decoder, shift, skip = parts()
    centred = ((X - shift) @ encoder.T + bias).relu()
    one = read_dictionary(saelens(tmp_path))
    assert torch.allclose(one(X), centred @ decoder + shift, atol=1e-6)
    plain = (X @ encoder.T + bias).relu()
    one = read_dictionary(saelens(tmp_path, apply_b_dec_to_input=False, architecture="jumprelu", more=("threshold",)))
    assert torch.allclose(one(X), plain * (plain > bias.abs()) @ decoder + shift, atol=1e-6)
    hooks = {"hook_name": "blocks.2.mlp.hook_in", "hook_name_out": "blocks.2.hook_mlp_out"}
    one = read_dictionary(saelens(tmp_path, architecture="skip_transcoder", more=("W_skip",), metadata=hooks, **hooks))
    assert one.reads == "input"
    assert torch.allclose(one(X), plain @ decoder + shift + X @ skip.T, atol=1e-5)
    norms = decoder.norm(dim=1)
    one = read_dictionary(saelens(tmp_path, architecture="topk", k=1, rescale_acts_by_decoder_norm=True))
    best = (centred * norms).argmax(-1)
    assert torch.allclose(one(X), centred.gather(1, best[:, None]) * decoder[best] + shift, atol=1e-6)
    older = {"activation_fn_str": "topk", "activation_fn_kwargs": {"k": 1}}
    assert read_dictionary(saelens(tmp_path, **older)).k == 1


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"normalize_activations": "layer_norm"}, "normalize_activations='layer_norm' is not read"),
        ({"architecture": "gated"}, "architecture='gated' .* is not read; name one of standard, topk"),
        ({"activation_fn": "tanh-relu"}, "with 'tanh-relu' is not read"),
        ({"finetuning_scaling_factor": True}, "finetuning_scaling_factor=True"),
        ({"hook_name": "blocks.2.hook_resid_pre"}, "'blocks.2.hook_resid_pre' is not an FFN's; name"),
        ({"hook_name": "blocks.2.mlp.hook_in"}, "an FFN's input"),
        (
            {
                "architecture": "transcoder",
                "hook_name": "blocks.2.ln2.hook_normalized",
                "hook_name_out": "blocks.2.hook_mlp_out",
            },
            "'blocks.2.ln2.hook_normalized' lies before the norm's own weights",
        ),
        ({"hook_name": "blocks.2.ln2_post.hook_normalized"}, "lies before the norm's own weights"),
        ({"architecture": "topk"}, "k=None in cfg.json must be a whole number, 1 to 6"),
        ({"architecture": "jumprelu"}, "there is no tensor threshold"),
        ({"more": ("scaling_factor",)}, "has tensors that are not read .scaling_factor."),
        ({"model_from_pretrained_kwargs": {"center_writing_weights": True}}, "changed by center_writing_weights"),
        ({"architecture": "transcoder", "hook_name_out": "blocks.3.hook_mlp_out"}, "is not one FFN's"),
    ],
)
def test_what_saelens_has_and_is_not_read(tmp_path: Path, said: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        read_dictionary(saelens(tmp_path, **said))
    assert str(caught.value).startswith(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_is_no_dictionary_of_sparsify(tmp_path: Path) -> None:
    refused(FileNotFoundError, r"no cfg.json in it", read_dictionary, tmp_path)
    with pytest.raises(ValueError, match=r"the hook point 'layers.3' is not an FFN's"):
        read_dictionary(sparsify(tmp_path, name="layers.3"))
    refused(ValueError, "of layer 2, and layer 5 is asked for", read_dictionary, sparsify(tmp_path), layer=5)
    refused(FileNotFoundError, r"layers.2.mlp, layers.3: name one", read_dictionary, tmp_path, layer=5)
    with pytest.raises(ValueError, match="activation='groupmax' is not read"):
        read_dictionary(sparsify(tmp_path, name="layers.4.mlp", activation="groupmax"))
    with pytest.raises(ValueError, match="skip connection without transcode=true"):
        read_dictionary(sparsify(tmp_path, name="layers.5.mlp", skip_connection=True))
    with pytest.raises(DamagedFileError, match=r"b_dec has the shape .5,., not .4."):
        read_dictionary(sparsify(tmp_path, {"b_dec": torch.zeros(5)}, name="layers.6.mlp"))
    with pytest.raises(DamagedFileError, match="W_dec is not finite"):
        read_dictionary(sparsify(tmp_path, {"W_dec": torch.full((N, WIDTH), torch.nan)}, name="layers.7.mlp"))
    (tmp_path / "layers.2.mlp" / "sae.safetensors").write_bytes(b"x")
    refused(DamagedFileError, "is damaged", read_dictionary, tmp_path / "layers.2.mlp")
    assert read_dictionary(sparsify(tmp_path, name="own"), layer=1).layer == 1


def test_the_hub_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ConnectionError, match=r"'nobody/at-all-xyz/layers.6.mlp' from the hub .offline mode is on"):
        read_dictionary("nobody/at-all-xyz/layers.6.mlp")
    refused(FileNotFoundError, r"there is no folder ./nowhere; name", read_dictionary, "./nowhere")
