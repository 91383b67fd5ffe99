#include "millrace/object/hf/repository.h"

#include <fmt/format.h>

#include <algorithm>

#include "millrace/base/text.h"

namespace millrace::object::hf {
namespace {

constexpr std::string_view kDatasets = "datasets/", kSpaces = "spaces/";

/// The hub's name of a kind, as in "/api/datasets/".
std::string_view Prefix(Repository::Kind kind) {
  switch (kind) {
    case Repository::Kind::kDataset:
      return kDatasets;
    case Repository::Kind::kSpace:
      return kSpaces;
    default:
      return "models/";
  }
}

}  // namespace

Repository Repository::Of(std::string_view bucket) {
  Repository repository{.text = std::string(bucket)};
  if (bucket.starts_with(kDatasets)) repository.kind = Kind::kDataset;
  if (bucket.starts_with(kSpaces)) repository.kind = Kind::kSpace;
  if (repository.kind != Kind::kModel) bucket.remove_prefix(Prefix(repository.kind).size());
  const std::size_t at = bucket.find('@');
  repository.id = bucket.substr(0, at);
  if (at != bucket.npos) repository.revision = PercentDecode(bucket.substr(at + 1)).value_or("");
  return repository;
}

bool Repository::IsCommit() const {
  constexpr std::size_t kDigits = 40;  // of a SHA-1
  return revision.size() == kDigits && revision.find_first_not_of("0123456789abcdef") == revision.npos;
}

std::string_view Repository::KindName() const {
  return kind == Kind::kModel ? "model" : kind == Kind::kDataset ? "data set" : "space";
}

std::string Repository::Page() const { return fmt::format("/{}{}", kind == Kind::kModel ? "" : Prefix(kind), id); }

std::string Repository::Api(std::string_view call, std::string_view of) const {
  return fmt::format("/api/{}{}/{}/{}", Prefix(kind), id, call, PercentEncode(of, /*keep_slash=*/false));
}

std::string Repository::RevisionCall() const { return Api("revision", revision) + "?expand=sha&expand=lastModified"; }

std::string Repository::TreeCall(std::string_view commit, std::string_view folder, bool recursive) const {
  std::string path = folder.empty() ? "" : "/" + PercentEncode(folder, /*keep_slash=*/false);
  return fmt::format("{}{}?recursive={}&expand=false", Api("tree", commit), path, recursive);
}

std::string Repository::PathsCall(std::string_view commit) const { return Api("paths-info", commit); }

std::string Repository::File(std::string_view commit, std::string_view path) const {
  return fmt::format("{}/resolve/{}/{}", Page(), commit, PercentEncode(path, /*keep_slash=*/true));
}

bool IsTreePath(std::string_view path) {
  return std::ranges::none_of(
      Split(path, '/'), [](std::string_view segment) { return segment.empty() || segment == "." || segment == ".."; });
}

}  // namespace millrace::object::hf
