"""Makes JSONL records {"title", "text"} from documents of the distribution: WordNet's glosses, PostgreSQL's manual and
Chinese poems. The packages are downloaded and unpacked, not installed: slim images drop documentation on install.

    python3 corpus.py OUTPUT_FOLDER CACHE_FOLDER
"""
import html.parser
import json
import pathlib
import re
import subprocess
import sys

PACKAGES = ["wordnet-base", "postgresql-doc-15", "fortunes-zh"]


def unpack(cache: pathlib.Path) -> pathlib.Path:
    """Downloads what is not there yet; afterwards works offline."""
    root = cache / "root"
    for package in PACKAGES:
        done = cache / f"{package}.unpacked"
        if done.exists():
            continue
        subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package], cwd=cache, check=True,
                       stderr=subprocess.DEVNULL)
        (deb,) = cache.glob(f"{package}_*.deb")
        subprocess.run(["dpkg-deb", "-x", deb, root], check=True)
        deb.unlink()
        done.touch()
    return root


def wordnet(root: pathlib.Path, per_record: int = 10):
    """Synsets as `word, other word: gloss` lines, ten to a record: short records mix well. Format: wndb(5WN)."""
    for part in ("noun", "verb", "adj", "adv"):
        lines, first = [], ""
        for line in (root / f"usr/share/wordnet/data.{part}").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("  "):  # the licence
                continue
            fields, gloss = line.split(" | ", 1)
            fields = fields.split(" ")
            words = [fields[4 + 2 * i].replace("_", " ") for i in range(int(fields[3], 16))]
            first = first or words[0]
            lines.append(f"{', '.join(words)}: {gloss.strip()}")
            if len(lines) == per_record:
                yield f"{part}s from {first}", "\n".join(lines)
                lines, first = [], ""
        if lines:
            yield f"{part}s from {first}", "\n".join(lines)


class PageText(html.parser.HTMLParser):
    """The title and the readable text of a page of PostgreSQL's manual."""
    BLOCKS = {"p", "div", "h1", "h2", "h3", "h4", "li", "tr", "dt", "dd", "pre", "br", "table"}
    SKIPPED = {"script", "style", "head"}

    def __init__(self):
        super().__init__()
        self.title, self.parts, self.skipping, self.in_title = "", [], 0, False

    def handle_starttag(self, tag, attributes):
        classes = dict(attributes).get("class") or ""
        if tag == "title":
            self.in_title = True
        if self.skipping or tag in self.SKIPPED or classes in ("navheader", "navfooter"):
            self.skipping += tag not in ("br", "hr", "img", "link", "meta", "col", "input")
        elif tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_endtag(self, tag):
        if tag == "title":
            self.in_title = False
        if self.skipping:
            self.skipping -= 1

    def handle_data(self, data):
        if self.in_title:
            self.title += data
        elif not self.skipping:
            self.parts.append(data)


def postgres(root: pathlib.Path):
    for page in sorted((root / "usr/share/doc/postgresql-doc-15/html").glob("*.html")):
        parser = PageText()
        parser.feed(page.read_text(encoding="utf-8", errors="replace"))
        text = re.sub(r"[ \t\u00a0]+", " ", "".join(parser.parts))
        text = re.sub(r" ?\n[ \n]*", "\n", text).strip()
        title = " ".join(parser.title.split())
        for number, part in enumerate(parts_of(text), start=1):
            yield f"{title} ({number})", part


def parts_of(text: str, size: int = 1500):
    """The lines of a text in pieces of about `size` characters."""
    part = ""
    for line in text.splitlines(keepends=True):
        part += line
        if len(part) >= size:
            yield part.strip()
            part = ""
    if part.strip():
        yield part.strip()


def fortunes(root: pathlib.Path):
    """Poems and sayings, separated by lines with a single %; colours are terminal escapes."""
    for name in ("tang300", "song100", "chinese"):
        text = (root / f"usr/share/games/fortunes/{name}").read_text(encoding="utf-8", errors="replace")
        text = re.sub(r"\x1b\[[0-9;]*m", "", text)
        for number, saying in enumerate(re.split(r"^%\n", text, flags=re.M)):
            if saying.strip():
                title = saying.strip().splitlines()[0][:40]
                yield f"{title} ({name} {number})", saying.strip()


def main(output: pathlib.Path, cache: pathlib.Path) -> None:
    output.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    root = unpack(cache)
    for name, records in (("wordnet", wordnet), ("postgresql", postgres), ("chinese", fortunes)):
        path = output / f"{name}.jsonl"
        count = 0
        with path.open("w", encoding="utf-8") as file:
            for title, text in records(root):
                file.write(json.dumps({"title": title, "text": text}, ensure_ascii=False) + "\n")
                count += 1
        print(json.dumps({"file": path.name, "records": count, "bytes": path.stat().st_size}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
