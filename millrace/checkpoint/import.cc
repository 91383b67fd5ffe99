#include "millrace/checkpoint/import.h"

#include "millrace/checkpoint/commit.h"
#include "millrace/checkpoint/store_reader.h"
#include "millrace/object/blocking.h"
#include "millrace/transfer/multipart_writer.h"
#include "millrace/transfer/ranged_reader.h"

namespace millrace::checkpoint {
namespace {

constexpr std::uint64_t kChunkBytes = 1 * kMiB;

/// Streams one object into another and sums its chunks on the way.
Result<FileMeta> CopyFile(object::Store& from, const std::string& source, std::uint64_t size, object::Store& to,
                          const std::string& destination, MemoryBudget& budget, const object::Call& call,
                          const Progress& progress) {
  auto info = MR_TRY(object::Head(from, source, call));
  if (!info || info->size != size) return Fail(Code::kStale, "{} changed while it was read", source);
  transfer::RangedReader reader(from, budget, *info, {.parallel_parts = 4});
  transfer::MultipartWriter writer(to, budget, destination, {});
  ChunkSums sums(kChunkBytes);
  for (ByteSpan piece = MR_TRY(reader.Next(call)); !piece.empty(); piece = MR_TRY(reader.Next(call))) {
    sums.Add(piece);
    MR_TRY(writer.Write(piece, call));
    if (progress) progress(piece.size());
  }
  MR_TRY(writer.Finish(call));
  return sums.Finish();
}

}  // namespace

Result<Manifest> ImportHuggingFace(object::Connection& connection, std::string_view source, std::string_view url,
                                   std::uint64_t step, MemoryBudget& budget, object::Call call,
                                   const Progress& progress) {
  if (step > kMaxStep) return Fail(Code::kInvalidArgument, "step {} is too large", step);
  auto folder = MR_TRY(OpenSafetensorsFiles(connection, source, call));
  object::Location root = MR_TRY(object::Locate(connection, url));
  const Layout layout(root.key);
  const std::string fence = MR_TRY(ExpectedFence(*root.store, layout, step, call));

  Manifest manifest = folder->manifest();
  manifest.step = step;
  manifest.attempt = NewAttempt();
  manifest.created = FormatIso8601(SystemClock().Wall());
  manifest.written_by = LocalProvenance("millrace ckpt import", "");
  manifest.files.clear();
  std::map<std::string, std::string> renamed;
  std::vector<std::string> keys;
  auto copy_files = [&]() -> Status {
    for (const auto& [name, file] : folder->manifest().files) {
      const std::string target = RankFile(manifest.attempt, static_cast<int>(renamed.size()));
      keys.push_back(layout.StepFolder(step) + target);
      manifest.files[target] = MR_TRY(CopyFile(folder->store(), folder->folder() + name, file.size, *root.store,
                                               keys.back(), budget, call, progress));
      renamed.emplace(name, target);
    }
    return {};
  };
  CommitOutcome outcome{copy_files()};
  if (outcome.status) {
    for (Slice& slice : manifest.slices) slice.file = renamed.at(slice.file);
    outcome = CommitManifest(*root.store, layout, manifest, fence);
  }
  if (outcome.status) return manifest;
  // Best effort: what stays is garbage, and collected as such.
  if (!outcome.unknown) std::ignore = object::DeleteMany(*root.store, std::move(keys));
  return Fail(outcome.status.error().Context(fmt::format("importing {} as step {} of {}", source, step, url)));
}

}  // namespace millrace::checkpoint
