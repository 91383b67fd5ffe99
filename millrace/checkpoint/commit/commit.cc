#include "millrace/checkpoint/commit/commit.h"

#include "millrace/object/blocking.h"
#include "millrace/object/support/conditions.h"

namespace millrace::checkpoint {
namespace {

Error Taken(std::uint64_t step, std::string_view manifest) {
  const auto parsed = Manifest::ParsePart(manifest, "what is there");
  return Error(Code::kAlreadyExists,
               fmt::format("step {} has a committed checkpoint already{}: another run saves there, or this one went "
                           "back; use another URL, or `millrace ckpt gc --after STEP` first",
                           step, parsed ? WhoWrote(*parsed) : ""));
}

}  // namespace

std::string WhoWrote(const Manifest& manifest) {
  const Provenance& who = manifest.written_by;
  if (who.host.empty()) return "";
  return fmt::format(", by {}@{} ({}, {})", who.user, who.host, who.program, manifest.created);
}

Result<std::string> ExpectedFence(object::Store& store, const CheckpointKeys& keys, std::uint64_t step,
                                  object::Call call) {
  MR_TRY(object::RequireConditions(store, keys.prefix(), kConditionAdvice, call));
  const std::string key = keys.ManifestKey(step);
  auto manifest = MR_TRY(object::GetAll(store, key, Manifest::kMaxBytes, call));
  if (!manifest) return std::string();
  if (IsFence(manifest->bytes)) return manifest->info.etag;
  return Fail(Taken(step, manifest->bytes));
}

CommitOutcome CommitManifest(object::Store& store, const CheckpointKeys& keys, const Manifest& manifest,
                             const std::string& expected_fence) {
  const std::string text = manifest.Serialize();
  const std::string key = keys.ManifestKey(manifest.step);
  auto put = object::Put(
      store, key, AsBytes(text),
      {.if_match = expected_fence, .if_none_match = expected_fence.empty(), .content_type = "application/json"});
  if (put) return {};
  // The request may have succeeded whatever the error is. Read the key back to find out.
  auto there = object::GetAll(store, key, Manifest::kMaxBytes);
  if (there && *there) {
    const auto& [bytes, info] = **there;
    if (bytes == text) return {};
    if (!IsFence(bytes)) return {Fail(Taken(manifest.step, bytes))};
    if (info.etag != expected_fence) {
      return {Fail(Code::kPreconditionFailed, "step {} was given up by garbage collection while it was being saved",
                   manifest.step)};
    }
  }
  return {Fail(put.error().Context(fmt::format("whether {} was written is unknown", key))), true};
}

}  // namespace millrace::checkpoint
