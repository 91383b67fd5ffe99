// The owner object below a checkpoint URL: which attempt of which run may save there, and from which steps the attempts
// before it went on. docs/formats/checkpoint.md, "The owner". Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/result.h"

namespace millrace::checkpoint {

/// One attempt's time as the owner. The epoch's number is a fencing token: manifests carry it.
struct OwnerEpoch {
  std::uint64_t number = 0;                 ///< from 1; each claim takes the next one
  std::string token;                        ///< random: tells two claims of one number from each other
  std::string run;                          ///< RunLineage::id
  int attempt = 1;                          ///< RunLineage::attempt
  std::string host, user, program;          ///< who claimed it
  std::string since;                        ///< ISO 8601, by the claimer's clock; for people
  bool has_begun = false;                   ///< whether `began_from` is known
  std::optional<std::uint64_t> began_from;  ///< the step that the attempt went on from; nothing: it began anew
  bool operator==(const OwnerEpoch&) const = default;

  /// Returns "ann@node-7 (millrace-train, since 2026-…)".
  std::string Who() const;
};

/// The content of the owner object.
struct OwnerRecord {
  /// The most epochs that a record has. Older ones are dropped; the owners after them have removed what they fenced.
  static constexpr std::size_t kMaxEpochs = 64;
  /// The most bytes that readers take: kMaxEpochs with long names.
  static constexpr std::uint64_t kMaxBytes = 256 * 1024;

  std::vector<OwnerEpoch> epochs;  ///< ascending by number, never empty; the last one is the owner's
  std::uint64_t renewals = 0;      ///< by the owner; each makes another content, and so another ETag
  bool has_ended = false;          ///< the owner has left, and anybody may claim the next epoch at once
  std::string process;             ///< ProcessName() of the owner

  const OwnerEpoch& owner() const { return epochs.back(); }
  /// Returns whether a manifest of `epoch` and `step` does not count: a later epoch began from an earlier step. False
  /// for epoch 0, which writers without an owner have.
  bool Supersedes(std::uint64_t epoch, std::uint64_t step) const;
  /// Returns the first epoch that supersedes a manifest, for messages. REQUIRES: Supersedes(epoch, step).
  const OwnerEpoch& SupersededBy(std::uint64_t epoch, std::uint64_t step) const;
  /// Returns the least step of manifests that may be superseded; nothing if none can be.
  std::optional<std::uint64_t> LeastSuperseded() const;
  /// Adds an epoch, and drops those that decide nothing any more if there are too many.
  void Add(OwnerEpoch epoch);

  /// Returns the record as JSON and a newline.
  std::string Serialize() const;
  /// Errors: kCorrupt if the text is no record, kUnsupported if it has a larger version. `name` is for messages.
  static Result<OwnerRecord> Parse(std::string_view text, std::string_view name);
  bool operator==(const OwnerRecord&) const = default;
};

/// The bytes at the beginning of a manifest in which its epoch is.
inline constexpr std::uint64_t kManifestHeadBytes = 512;
/// Returns the epoch of a manifest, from its first kManifestHeadBytes bytes; 0 if it names none.
std::uint64_t EpochOfManifestHead(std::string_view head);

}  // namespace millrace::checkpoint
