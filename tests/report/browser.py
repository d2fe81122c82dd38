"""A page in a real browser (Debian's chromium, headless): what it says on its console, how wide it is, and
the contrast of every piece of text on its ground.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: apt-get install chromium runs these tests"
)

SCRIPT = """
function light(c){return c.slice(0,3).map(v=>v/255).map(v=>v<=.03928?v/12.92:Math.pow((v+.055)/1.055,2.4))
  .reduce((s,v,i)=>s+v*[.2126,.7152,.0722][i],0)}
function rgba(text){const n=text.match(/[\\d.]+/g).map(Number);return n.length<4?[...n,1]:n}
function ground(e){for(;e;e=e.parentElement){const c=rgba(getComputedStyle(e).backgroundColor);
  if(c[3]>0)return c}return [255,255,255,1]}
onload=()=>{const frame=document.querySelector('iframe'),page=frame.contentDocument,poor=[],wide=[];
  let count=0;
  for(const e of page.body.querySelectorAll('*')){
    const own=[...e.childNodes].some(n=>n.nodeType===3&&n.data.trim());
    const box=e.getBoundingClientRect();
    if(box.width&&box.right>frame.clientWidth+.5&&!e.closest('.wide'))wide.push(e.outerHTML.slice(0,120));
    if(!own||!box.width||e.tagName==='TITLE')continue;
    const style=getComputedStyle(e),ink=rgba(e.ownerSVGElement?style.fill:style.color),on=ground(e);
    const [a,b]=[light(ink),light(on)].sort((x,y)=>y-x),ratio=(a+.05)/(b+.05);count++;
    const size=parseFloat(style.fontSize),large=size>=24||(size>=18.66&&style.fontWeight>=700);
    if(ratio<(large?3:4.5))poor.push([Math.round(ratio*100)/100,e.outerHTML.slice(0,120)]);}
  const width=page.documentElement.scrollWidth;
  const told=JSON.stringify({width,count,poor,wide,ground:ground(page.body)});
  document.body.innerHTML='';const out=document.createElement('pre');out.id='found';
  out.textContent=told;document.body.append(out);}
"""


@dataclass(frozen=True)
class Look:
    """What was found."""

    width: int
    texts: int
    poor: list[Any]
    wide: list[str]
    dark: bool
    console: list[str]


def look(page: str, folder: Path, *, width: int, dark: bool = False) -> Look:
    """The page in a frame of `width` pixels, in one of the two themes."""
    if CHROMIUM is None:
        raise FileNotFoundError("chromium")
    harness = folder / "harness.html"
    frame = (
        f'<iframe srcdoc="{escape(page, quote=True)}" style="border:0;width:{width}px;height:900px"></iframe>'
    )
    harness.write_text(f"<!doctype html><meta charset=utf-8><body>{frame}<script>{SCRIPT}</script></body>")
    theme = ["--force-dark-mode"] if dark else []
    done = subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *theme,
         f"--user-data-dir={folder / 'profile'}", "--window-size=1300,1000", "--virtual-time-budget=3000",
         "--dump-dom", harness.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    if found is None:
        raise AssertionError(f"the page was not looked at: {done.stdout[-300:]} {done.stderr[-300:]}")
    told = json.loads(unescape(found[1]))
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    is_dark = sum(told["ground"][:3]) < 384
    return Look(told["width"], told["count"], told["poor"], told["wide"], is_dark, console)
