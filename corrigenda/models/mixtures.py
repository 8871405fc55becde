"""`Experts`: the experts of one layer of a mixture, each a feed-forward network of its own.

For the state x of a token, of which the router chose the experts E(x) with the weights w_e:

    FFN(x) = sum over e in E(x) of w_e FFN_e(x)   (+ the shared expert's answer, where there is one)
    FFN_e(x) = m_e V_e (+ b_e),   m_e = f(x G_e^T) * (x U_e^T)

(Shazeer et al. 2017, "Outrageously Large Neural Networks"). So the layer's answer is linear in the values of all its
experts, with the coefficients w_e m_e. transformers keeps the matrices of all experts in one parameter, and no module
has m_e or FFN_e(x) for its input or output: what an expert does is computed here from what `experts` is called with.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from corrigenda.errors import UnsupportedModelError
from corrigenda.models.offloaded import require_here


@dataclass
class Answer:
    """What one expert says in one forward.

    Attributes:
        coefficients: m_e, (token, d_ffn), as changed so far; of the tokens that it was not chosen for, too.
        counted: what of its answer is in the layer's output already, (token, d_model).
        output: FFN_e(x), (token, d_model), where it was changed itself; else it follows from the coefficients.
    """

    coefficients: Tensor
    counted: Tensor
    output: Tensor | None = None


class Choice:
    """One call of a layer's experts, as those see it who look into it.

    Attributes:
        states: (token, d_model).
        experts: (token, k), which were chosen.
        weights: (token, k), their weights.
        answers: of the experts that somebody looks at.
    """

    def __init__(self, states: Tensor, experts: Tensor, weights: Tensor) -> None:
        self.states, self.experts, self.weights = states, experts, weights
        self.answers: dict[int, Answer] = {}

    def asked(self, expert: int) -> Tensor:
        """Which tokens an expert was chosen for, (token, 1)."""
        return (self.experts == expert).any(-1, keepdim=True)

    def weight(self, expert: int) -> Tensor:
        """The weight of an expert's answer, (token, 1); 0 where it was not chosen."""
        return (self.weights * (self.experts == expert)).sum(-1, keepdim=True)

    def all_weights(self, n_experts: int) -> Tensor:
        """The weights of all experts, (token, expert); 0 for those that were not chosen."""
        return self.weights.new_zeros(len(self.states), n_experts).scatter(1, self.experts, self.weights)


class Experts:
    """The experts of one layer.

    Args:
        module: holds the matrices of all of them; is called with states, (token, d_model), chosen experts and their
            weights, (token, k).
        name: what messages call it.

    Attributes:
        choice: what the module was called with, while somebody looks into it.

    Raises:
        UnsupportedModelError: its matrices are not two parameters with the expert as first dimension.
    """

    def __init__(self, module: nn.Module, name: str) -> None:
        for part in ("gate_up_proj", "down_proj"):
            weight = getattr(module, part, None)
            if not isinstance(weight, Tensor) or weight.ndim != 3 or not weight.is_floating_point():
                raise UnsupportedModelError(
                    f"{name} ({type(module).__name__}) has no {part} with three dimensions (expert, in, out), so its "
                    "experts cannot be looked into; load the model unquantised"
                )
        self.module = module
        self.choice: Choice | None = None
        self._transposed = bool(getattr(module, "is_transposed", False))
        self._halves = bool(getattr(module, "is_concatenated", True))

    def __len__(self) -> int:
        weight: Tensor = self.module.down_proj  # type: ignore[assignment]
        return weight.shape[0]

    def weight(self, expert: int) -> Tensor:
        """What stores V_e: a view of the weights, in the module's own orientation."""
        weight: Tensor = self.module.down_proj  # type: ignore[assignment]
        require_here(weight, f"the parameter of expert {expert} and of all others beside it")
        return weight.detach()[expert]

    @property
    def transposed(self) -> bool:
        """Whether `weight` is V_e itself and not its transpose."""
        return self._transposed

    def values(self, expert: int) -> Tensor:
        """V_e, (d_ffn, d_model): a view of the weights."""
        weight = self.weight(expert)
        return weight if self._transposed else weight.T

    def keys(self, expert: int) -> Tensor:
        """U_e, (d_ffn, d_model): a view of the weights."""
        return self._input_rows(expert)[self._part(1)]

    def gates(self, expert: int) -> Tensor:
        """G_e, (d_ffn, d_model): a view of the weights."""
        return self._input_rows(expert)[self._part(0)]

    def bias(self, expert: int) -> Tensor | None:
        """b_e, (d_model,), or None."""
        bias: Tensor | None = getattr(self.module, "down_proj_bias", None)
        return None if bias is None else bias.detach()[expert]

    def coefficients(self, expert: int, states: Tensor) -> Tensor:
        """m_e, (n, d_ffn), for states (n, d_model)."""
        sums = states @ self._input_rows(expert).T
        bias: Tensor | None = getattr(self.module, "gate_up_proj_bias", None)
        coefficients: Tensor = self.module._apply_gate(sums if bias is None else sums + bias[expert])  # type: ignore[operator]
        return coefficients

    def read(self, expert: int, coefficients: Tensor) -> Tensor:
        """m_e V_e + b_e, (n, d_model), for coefficients (n, d_ffn)."""
        answer, bias = coefficients @ self.values(expert), self.bias(expert)
        return answer if bias is None else answer + bias

    def called(self, states: Tensor, experts: Tensor, weights: Tensor) -> Choice:
        """What is known of the call that the module is given now; the same object for one call."""
        if self.choice is None or self.choice.states is not states:
            self.choice = Choice(states, experts, weights)
        self.choice.experts, self.choice.weights = experts, weights
        return self.choice

    def answer(self, choice: Choice, expert: int) -> Answer:
        """What an expert answers in a call."""
        if expert not in choice.answers:
            coefficients = self.coefficients(expert, choice.states)
            choice.answers[expert] = Answer(coefficients, self.read(expert, coefficients))
        return choice.answers[expert]

    def now(self, choice: Choice, expert: int) -> Tensor:
        """FFN_e(x) as changed so far, (token, d_model)."""
        answer = self.answer(choice, expert)
        return self.read(expert, answer.coefficients) if answer.output is None else answer.output

    def corrected(self, choice: Choice, expert: int, output: Tensor) -> Tensor:
        """The module's output, (token, d_model), with an expert's answer as it is now in place of the one in it."""
        answer, now = self.answer(choice, expert), self.now(choice, expert)
        more = (choice.weight(expert) * (now - answer.counted)).to(output.dtype)
        answer.counted = now
        return output + more.view_as(output)

    def _input_rows(self, expert: int) -> Tensor:
        weight: Tensor = self.module.gate_up_proj  # type: ignore[assignment]
        return weight.detach()[expert].T if self._transposed else weight.detach()[expert]

    def _part(self, which: int) -> slice:
        """The rows of the gates (0) or of the keys (1) in the one matrix that holds both."""
        if not self._halves:
            return slice(which, None, 2)
        d_ffn = self.values(0).shape[0]
        return slice(which * d_ffn, (which + 1) * d_ffn)
