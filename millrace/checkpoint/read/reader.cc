#include "millrace/checkpoint/read/reader.h"

#include "millrace/checkpoint/commit/superseded.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/read/catalog.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {

const CheckpointContents& Reader::contents() const { return manifest(); }

std::string Reader::MetaText() const { return DumpJson(manifest().meta); }

Result<std::unique_ptr<StoreReader>> OpenAt(const object::ReadLocation& root, std::uint64_t step, object::Call call) {
  const CheckpointKeys keys(root.key);
  const std::string name = fmt::format("{}/{}", root.store->Describe(), keys.StepName(step));
  auto content = MR_TRY(object::GetAll(*root.store, keys.ManifestKey(step), Manifest::kMaxBytes, call));
  if (!content || IsFence(content->bytes))
    return Fail(Code::kNotFound, "{} is not a committed checkpoint; `millrace ckpt ls` lists those that are", name);
  Manifest manifest = MR_TRY(Manifest::Parse(content->bytes, name + ".json"));
  if (manifest.step != step) return Fail(Code::kCorrupt, "{}.json is the manifest of step {}", name, manifest.step);
  return std::make_unique<StoreReader>(root.store, keys.StepFolder(step), name, std::move(manifest));
}

namespace {

/// Fails with kNotFound if the manifest is superseded.
Status CheckCounts(const object::ReadLocation& root, const Manifest& manifest, const std::string& name,
                   const object::Call& call) {
  if (manifest.epoch == 0) return {};
  const auto record = MR_TRY(ReadOwner(*root.store, CheckpointKeys(root.key), call));
  if (!record || !record->Supersedes(manifest.epoch, manifest.step)) return {};
  const OwnerEpoch& later = record->SupersededBy(manifest.epoch, manifest.step);
  return Fail(Code::kNotFound, "{} does not count: its run had lost its place to {}; use another step", name,
              later.Who());
}

}  // namespace

Result<std::unique_ptr<Reader>> Reader::Open(object::Connection& connection, std::string_view url,
                                             std::optional<std::uint64_t> step, object::Call call) {
  const object::Location root = MR_TRY(object::Locate(connection, url));
  // A collector may remove the checkpoint between the listing and the read. It does so only if there is a newer one.
  constexpr int kAttempts = 5;  // a guess: a second failure is already unlikely
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::uint64_t number = step.value_or(0);
    if (!step) {
      auto entries = MR_TRY(ListCheckpoints(root, call));
      if (entries.empty()) return Fail(NoCheckpoints(root, url, call));
      number = entries.back().step;
    }
    auto reader = OpenAt(root, number, call);
    if (reader && step) MR_TRY(CheckCounts(root, (*reader)->manifest(), (*reader)->name(), call));
    if (reader || reader.error().code() != Code::kNotFound) return reader;
    if (step) {
      return Fail(Code::kNotFound, "{} has no committed checkpoint of step {}; `millrace ckpt ls` lists the steps", url,
                  *step);
    }
  }
  return Fail(Code::kUnavailable, "checkpoints of {} are removed faster than they can be opened", url);
}

}  // namespace millrace::checkpoint
