"""OCI image layouts: folders of blobs that skopeo, podman, containerd, helm and oras read
(https://specs.opencontainers.org/image-spec/image-layout/). The same content makes the same bytes."""
import datetime
import hashlib
import json
import pathlib
import tarfile

OCI = "application/vnd.oci.image."


def json_bytes(value):
    return json.dumps(value, sort_keys=True).encode()


def time_text(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Layout:
    """A new layout in `folder`, with one image or artefact: blobs, then manifest(), then close()."""

    def __init__(self, folder):
        self.blobs = folder / "blobs/sha256"
        self.blobs.mkdir(parents=True)
        self.folder = folder
        (folder / "oci-layout").write_bytes(json_bytes({"imageLayoutVersion": "1.0.0"}))

    def blob(self, content, media_type):
        """Writes a blob, named by its hash. Returns its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        (self.blobs / digest).write_bytes(content)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}

    def manifest(self, config, layers, annotations=None):
        """Writes the manifest of a config and layers, which are descriptors. Returns its descriptor."""
        value = {"schemaVersion": 2, "mediaType": OCI + "manifest.v1+json", "config": config, "layers": layers}
        if annotations:
            value["annotations"] = annotations
        return self.blob(json_bytes(value), OCI + "manifest.v1+json")

    def close(self, described, annotations):
        """Writes the index, which names the manifest. Returns the manifest's digest."""
        index = {"schemaVersion": 2, "manifests": [described | {"annotations": annotations}]}
        (self.folder / "index.json").write_bytes(json_bytes(index))
        return described["digest"]


def pack(folder: pathlib.Path, path: pathlib.Path, time):
    """Packs a layout as one archive, which podman and containerd load."""
    with tarfile.open(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            if not file.is_file():
                continue
            entry = tarfile.TarInfo(str(file.relative_to(folder)))
            entry.mtime, entry.size = time, file.stat().st_size
            with open(file, "rb") as content:
                archive.addfile(entry, content)
