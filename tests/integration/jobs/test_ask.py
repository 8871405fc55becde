from pathlib import Path

import gguf
import program
import pytest
import tiny
import torch
import yaml
from gguf_parts import write_gguf
from peft import PeftModel

from corrigenda import ContextEdit, Edit, Fact, LanguageModel, LowRankEdit, Origin, ValueEdit, load

PROMPT = "the tower is in"


lm = pytest.fixture(tiny.steep, scope="module")


@pytest.fixture
def home(lm: LanguageModel, tmp_path: Path) -> Path:
    """A folder with the model, an edit of its weights, one beside them, and a run with one edit and one with two."""
    lm.save_pretrained(tmp_path / "model")
    draw = torch.Generator().manual_seed(0)
    shape = lm.memory(1).values.shape
    named = load(tmp_path / "model", device="cpu")
    factors = (torch.randn(shape[0], 1, generator=draw), torch.randn(1, shape[1], generator=draw))
    origin = Origin(named.name, lm.fingerprint, "toy", facts=(Fact("tower", "the {} is in", "Rome"),))
    edit = LowRankEdit.of(named, origin, {1: factors})
    edit.save(tmp_path / "an edit=1,2")
    edit.save(tmp_path / "one/edits/0000-a")
    for name in ("0000-a", "0001-b"):
        edit.save(tmp_path / "two/edits" / name)
    ContextEdit(origin, "Rome is a city . ").save(tmp_path / "beside")
    return tmp_path


def edited(home: Path, lm: LanguageModel, prompt: str, tokens: int) -> str:
    with Edit.load(home / "an edit=1,2").applied(lm):
        return lm.generate(prompt, tokens)


def test_before_and_after(home: Path, lm: LanguageModel) -> None:
    before, after = lm.generate(PROMPT, 6), edited(home, lm, PROMPT, 6)
    assert before != after
    said = program.call(
        home, "ask", PROMPT, "edit=an edit=1,2", "max_new_tokens=6", "model.device=cpu", "hydra.run.dir=x"
    )
    words = " ".join(said.replace("│", " ").split())
    assert set(before.split()) | set(after.split()) <= set(words.split())
    assert "low_rank edit" in said
    assert "tower is in: (nothing) -> Rome" in said
    for folder in ("one", "one/edits"):
        one = program.call(home, "job=ask", f"job.prompt={PROMPT}", f"job.edit={folder}", "job.max_new_tokens=6")
        assert "low_rank edit" in one


def test_the_model_is_loaded_as_the_run_says(home: Path) -> None:
    half = load(home / "model", device="cpu", dtype="bfloat16")
    origin = Origin(half.name, half.fingerprint, "toy", facts=(Fact("tower", "the {} is in", "Rome"),))
    ContextEdit(origin, "Rome is a city . ").save(home / "run/edits/0000-a")
    groups = {name: dict[str, object]() for name in ("data", "editor", "eval", "logger", "job", "choices")}

    def ask(*arguments: str, succeeds: bool = True, **model: object) -> str:
        begun = groups | {"mode": "single", "seed": 0, "model": {"name": half.name, "dtype": "bfloat16"} | model}
        (home / "run/config.yaml").write_text(yaml.safe_dump(begun))
        asked = ("ask", PROMPT, "edit=run", "max_new_tokens=2", "model.device=cpu", *arguments)
        return program.call(home, *asked, succeeds=succeeds)

    assert "context edit" in ask()
    assert "if you trust that run, add model.trust_remote_code=true" in ask(trust_remote_code=True, succeeds=False)
    said = ask("model.dtype=float32", succeeds=False)
    assert "in float32 has; name what it was made on by model= or model.name=, model.dtype=" in said


def test_without_an_edit(home: Path, lm: LanguageModel) -> None:
    prompt = "the tower = ${seed} , it's"
    model = ["model=own", "model.name=model", "model.device=cpu"]
    said = program.call(home, "ask", prompt, "max_new_tokens=3", *model)
    assert f"{prompt}{lm.generate(prompt, 3)}" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["edit=nowhere"], "job.edit=nowhere: there is no such folder"),
        (["edit=model"], "job.edit=model: there is no edit in this folder"),
        (["edit=two"], "job.edit=two: there are 2 edits; name one of them, job.edit=two/edits/0000-a"),
        (["edit=beside", "model=own", "model.name=model/none/x"], "there is no model folder"),
    ],
)
def test_what_cannot_be(arguments: list[str], message: str, home: Path) -> None:
    assert message in program.call(home, "ask", PROMPT, *arguments, succeeds=False)


def test_export_of_a_model(home: Path, lm: LanguageModel) -> None:
    program.call(home, "export", "an edit=1,2", "to=new model", "model.device=cpu")
    found = load(home / "new model", device="cpu")
    assert found.generate(PROMPT, 6) == edited(home, lm, PROMPT, 6)
    with Edit.load(home / "an edit=1,2").applied(lm):
        assert torch.equal(found.memory(1).values, lm.memory(1).values)
    again = program.call(home, "export", "an edit=1,2", "to=new model", succeeds=False)
    assert "job.to=new model: there is something already" in again
    assert "not in the weights" in program.call(
        home, "export", "beside", "to=other", "model.device=cpu", succeeds=False
    )


def test_edits_on_top_of_one_another(home: Path, lm: LanguageModel) -> None:
    first = Edit.load(home / "one/edits/0000-a")
    assert isinstance(first, LowRankEdit)
    change = torch.randn(lm.memory(2).values.shape, generator=torch.Generator().manual_seed(1))
    ValueEdit(first.origin, {2: change}).save(home / "second")
    with first.applied(lm), Edit.load(home / "second").applied(lm):
        values, answer = [lm.memory(layer).values.clone() for layer in (1, 2)], lm.generate(PROMPT, 6)
    assert answer != edited(home, lm, PROMPT, 6)
    both = "edit=[one,second]"
    said = program.call(home, "ask", PROMPT, both, "max_new_tokens=6", "model.device=cpu")
    after = [line.split("│")[3] for line in said.splitlines() if line.startswith("│")]
    assert " ".join(after).split() == answer.split()
    assert ("low_rank edit" in said, "values edit" in said) == (True, True)
    said = program.call(home, "export", both, "to=both", "model.device=cpu")
    assert "with 2 edits in both" in said
    found = load(home / "both", device="cpu")
    assert all(torch.equal(found.memory(layer).values, one) for layer, one in zip((1, 2), values, strict=True))
    assert "an adapter is made of one edit" in program.call(
        home, "export", both, "to=other", "form=adapter", succeeds=False
    )


def test_export_of_an_adapter(home: Path, lm: LanguageModel) -> None:
    program.call(home, "export", "an edit=1,2", "to=adapter", "form=adapter")
    # An edit that is merged with itself, all of it, is what it was.
    program.call(home, "export", "edit=[one,one]", "merge=ties_svd", "density=1", "to=merged", "form=adapter")
    for edit, adapter in {"an edit=1,2": "adapter", "one/edits/0000-a": "merged"}.items():
        base = load(home / "model", device="cpu").model
        adapted = PeftModel.from_pretrained(base, str(home / adapter)).merge_and_unload()
        with Edit.load(home / edit).applied(lm):
            expected = lm.memory(1).values.clone()
        found = adapted.model.layers[1].mlp.down_proj.weight.T
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert "cannot be written as a PEFT adapter" in program.call(
        home, "export", "beside", "to=other", "form=adapter", succeeds=False
    )


def test_export_of_a_gguf_adapter(home: Path) -> None:
    edit = Edit.load(home / "one/edits/0000-a")
    ValueEdit(edit.origin, {2: torch.eye(*edit.delta(1).shape)}).save(home / "second")
    both = ("edit=[one,second]", "rank=3")
    said = program.call(home, "export", *both, "form=gguf-adapter", "to=adapter", "dtype=float16")
    share = (1 - 3 / edit.delta(1).shape[1]) ** 0.5  # of equal singular values all but three are missing
    assert f"layer 2: {share:.1e}" in said
    assert "--lora adapter/adapter.gguf" in said
    reader = gguf.GGUFReader(home / "adapter/adapter.gguf")
    assert [tensor.name for tensor in reader.tensors][::2] == [f"blk.{n}.ffn_down.weight.lora_a" for n in (1, 2)]
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {"F16"}
    for arguments, message in {
        ("edit=beside", "form=gguf-adapter"): "context edit cannot be written as a GGUF adapter",
        ("form=gguf-adapter",): "name the folders of the edits",
        ("form=gguf",): "name the folders of the edits",
        both: "rank is of form=gguf-adapter",
        ("edit=one", "dtype=float16"): "dtype=float16: form=model takes none",
        ("edit=[one,one]", "density=0.2"): "job.density=0.2: it is for job.merge=ties_svd or ties",
        ("edit=one", "form=gguf-adapter", "dtype=q8_0"): "form=gguf-adapter takes float32 or float16",
        ("edit=one", "form=gguf", "dtype=float32"): "form=gguf takes float16 or q8_0 or former",
        ("edit=one", "form=gguf"): "is no GGUF file: name the file",
    }.items():
        assert message in program.call(home, "export", *arguments, "to=other", succeeds=False)
    assert not (home / "other").exists()


def test_export_of_a_gguf_file(home: Path, lm: LanguageModel) -> None:
    base = write_gguf(home / "base.gguf", lm)
    said = program.call(home, "export", "one", "form=gguf", "to=edited.gguf", f"model.name={base}")
    assert "the edited tensors: layer 1: F32; all others as they were" in said
    assert "llama-cli -m edited.gguf" in said
    with Edit.load(home / "one/edits/0000-a").applied(lm):
        torch.testing.assert_close(load(home / "edited.gguf", device="cpu").memory(1).values, lm.memory(1).values)
    said = program.call(home, "export", "one", "form=gguf", "to=edited.gguf", f"model.name={base}", succeeds=False)
    assert "to=edited.gguf: there is something already" in said
