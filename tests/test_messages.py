"""One grammar for what is raised: a clause that begins small, says what was given, and ends without a stop."""

import ast
from pathlib import Path

import codanet

PACKAGE = Path(codanet.__file__).parent
OURS = {"ValueError", "DataError", "NetworkError", "Busy", "Damaged", "DoesNotFit", "NotFinite", "Divergence"}
NAMES = ("GradCAM", "DeepLIFT", "RandAugment", "ImageNet", "Quantus")  # which begin as they are written


def raised() -> list[tuple[str, str, str]]:
    """Every message that stands where it is raised: the place, how it begins, how it ends; {} for what is filled in."""
    messages = []
    for file in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
                continue
            words = node.exc.args[0]
            if ast.unparse(node.exc.func) in OURS and isinstance(words, ast.Constant | ast.JoinedStr):
                parts = words.values if isinstance(words, ast.JoinedStr) else [words]
                texts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts]
                messages.append((f"{file.relative_to(PACKAGE)}:{node.lineno}", texts[0], texts[-1]))
    return messages


def test_messages_begin_small_and_end_without_a_stop():
    messages = raised()
    assert len(messages) > 400
    odd = [place for place, first, _ in messages if first[:1].isupper() and not first.startswith(NAMES)]
    odd += [place for place, _, last in messages if last.endswith((".", "\n"))]
    assert odd == []
