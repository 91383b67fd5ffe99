// Which checkpoints there are, and opening one of them.
#include <algorithm>
#include <set>

#include "millrace/checkpoint/checkpoint.h"
#include "millrace/checkpoint/format/layout.h"
#include "millrace/checkpoint/read/store_reader.h"
#include "millrace/object/blocking.h"

namespace millrace::checkpoint {

namespace {

/// Whether the object under a manifest's key is a fence, or is gone.
Result<bool> HasFence(object::ReadStore& store, const std::string& key, const object::Call& call) {
  const auto content = MR_TRY(object::GetAll(store, key, Manifest::kMaxBytes, call));
  return !content || IsFence(content->bytes);
}

}  // namespace

Result<std::vector<Entry>> ListCheckpoints(const object::ReadLocation& root, object::Call call) {
  const Layout layout(root.key);
  std::vector<Entry> entries;
  std::vector<Entry> like_fences;  // by their size
  std::set<std::uint64_t> pinned;
  std::set<std::string, std::less<>> folders;
  MR_TRY(object::ListAll(
      *root.store, {.prefix = layout.StepsPrefix(), .delimiter = "/"},
      [&](const object::ListPage& page) {
        for (const object::ObjectInfo& object : page.objects) {
          auto step = layout.StepOfManifest(object.key);
          if (step)
            (object.size == kFenceBytes ? like_fences : entries).push_back({*step, object.key, object.modified});
          if (auto mark = layout.ParseMark(object.key); mark && mark->kind == Layout::Mark::Kind::kPin)
            pinned.insert(mark->step);
        }
        folders.insert(page.common_prefixes.begin(), page.common_prefixes.end());
        return true;
      },
      call));
  // A step that was removed has no files. One that has files and something of a fence's size may be a checkpoint whose
  // manifest was cut to that size.
  for (Entry& entry : like_fences) {
    if (!folders.contains(layout.StepFolder(entry.step))) continue;
    if (!MR_TRY(HasFence(*root.store, entry.key, call))) entries.push_back(std::move(entry));
  }
  for (Entry& entry : entries) entry.pinned = pinned.contains(entry.step);
  // Keys sort by name; beyond eight digits that is not the order of the steps.
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.step < b.step; });
  return entries;
}

Result<std::unique_ptr<StoreReader>> OpenAt(const object::ReadLocation& root, std::uint64_t step, object::Call call) {
  const Layout layout(root.key);
  const std::string name = fmt::format("{}/{}", root.store->Describe(), layout.StepName(step));
  auto content = MR_TRY(object::GetAll(*root.store, layout.ManifestKey(step), Manifest::kMaxBytes, call));
  if (!content || IsFence(content->bytes)) return Fail(Code::kNotFound, "{} is no committed checkpoint", name);
  Manifest manifest = MR_TRY(Manifest::Parse(content->bytes, name + ".json"));
  if (manifest.step != step) return Fail(Code::kCorrupt, "{}.json is the manifest of step {}", name, manifest.step);
  return std::make_unique<StoreReader>(root.store, layout.StepFolder(step), name, std::move(manifest));
}

Result<std::unique_ptr<Reader>> Reader::Open(object::Connection& connection, std::string_view url,
                                             std::optional<std::uint64_t> step, object::Call call) {
  const object::Location root = MR_TRY(object::Locate(connection, url));
  // A checkpoint may be removed between the listing and the read; then there is a newer one.
  constexpr int kAttempts = 5;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    std::uint64_t number = step.value_or(0);
    if (!step) {
      auto entries = MR_TRY(ListCheckpoints(root, call));
      if (entries.empty()) return Fail(Code::kNotFound, "{} has no committed checkpoint", url);
      number = entries.back().step;
    }
    auto reader = OpenAt(root, number, call);
    if (reader || reader.error().code() != Code::kNotFound) return reader;
    if (step) return Fail(Code::kNotFound, "{} has no committed checkpoint of step {}", url, *step);
  }
  return Fail(Code::kUnavailable, "checkpoints of {} disappear faster than they can be opened", url);
}

}  // namespace millrace::checkpoint
