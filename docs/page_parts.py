"""Parts of pages that Sphinx does not have: formulas as MathML, and sections that fold.

Browsers draw MathML themselves, so formulas need no script and no network.
"""

from html import escape
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import Directive, directives
from latex2mathml.converter import convert


def mathml(latex: str, display: str) -> str:
    """A formula as MathML, with its LaTeX as the text to copy."""
    drawn = convert(latex.strip(), display=display)
    # A name of a function and its argument stand apart.
    drawn = drawn.replace("<mi>log</mi>", '<mi>log</mi><mspace width="0.17em"/>')
    return drawn.replace("<math ", f'<math aria-label="{escape(" ".join(latex.split()))}" ', 1)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


class Fold(Directive):
    """``:::{fold} Title``: what it holds is hidden until the title is clicked."""

    has_content = True
    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[Any] = {"open": directives.flag}

    def run(self) -> list[nodes.Node]:
        inside = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, inside)
        start = f'<details class="fold"{" open" if "open" in self.options else ""}>'
        head = f"{start}<summary>{escape(self.arguments[0])}</summary>"
        before, after = (nodes.raw("", text, format="html") for text in (head, "</details>"))
        return [before, *inside.children, after]


def setup(app: Any) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_directive("fold", Fold)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
