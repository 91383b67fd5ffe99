// The keys of objects below a checkpoint URL: docs/formats/checkpoint.md, "Keys" and "Fences". Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::checkpoint {

/// The size of every fence: {"fence":"<32 hex digits>"} and a newline. A manifest is always longer, so a listing tells
/// fences from manifests. An object of any other size under a manifest's key is a manifest, whole or damaged.
inline constexpr std::uint64_t kFenceBytes = 45;
/// The greatest step: 18 digits, so that it fits a signed 64-bit integer.
inline constexpr std::uint64_t kMaxStep = 999'999'999'999'999'999;

/// Makes and parses the keys below one root. Immutable.
class CheckpointKeys {
 public:
  /// `root` is a key prefix, with or without a slash at its end; empty: the whole bucket.
  explicit CheckpointKeys(std::string_view root);

  /// The part that all keys begin with: empty, or with a slash at its end.
  const std::string& prefix() const { return root_; }
  std::string StepsPrefix() const { return root_ + "step-"; }
  std::string ManifestKey(std::uint64_t step) const { return StepName(step) + ".json"; }
  /// The owner object. Its name follows those of all steps, so a listing of StepsPrefix() ends with it.
  std::string OwnerKey() const { return StepsPrefix() + "owner.json"; }
  /// The prefix of the files of the step's attempts; ends with a slash.
  std::string StepFolder(std::uint64_t step) const { return StepName(step) + "/"; }
  /// "…/step-00000150"
  std::string StepName(std::uint64_t step) const;

  enum class MarkKind {
    kPin,      ///< somebody wants the checkpoint kept
    kHold,     ///< a reader uses the checkpoint
    kRemoval,  ///< a collector is about to remove the checkpoint
  };
  /// A small object beside the manifest.
  struct Mark {
    std::uint64_t step = 0;
    MarkKind kind = MarkKind::kPin;
  };
  std::string PinKey(std::uint64_t step) const { return StepName(step) + ".pin"; }
  std::string NewHoldKey(std::uint64_t step) const;
  std::string NewRemovalKey(std::uint64_t step) const;
  /// The prefix of the step's manifest and of all its marks.
  std::string MarksPrefix(std::uint64_t step) const { return StepName(step) + "."; }
  /// Returns the mark that the key is of; nothing for any other key.
  std::optional<Mark> ParseMark(std::string_view key) const;

  /// Returns a key below the root without the root.
  std::string Relative(std::string_view key) const { return std::string(key.substr(root_.size())); }

  /// Returns the step of a manifest's key; nothing for any other key.
  std::optional<std::uint64_t> StepOfManifest(std::string_view key) const;
  struct FileKey {
    std::uint64_t step = 0;
    std::string_view attempt;
  };
  /// Returns step and attempt of a file's key; nothing for any other key.
  std::optional<FileKey> ParseFileKey(std::string_view key) const;

 private:
  std::optional<std::uint64_t> ParseStep(std::string_view digits) const;
  std::string root_;  ///< empty, or ends with a slash
};

/// Returns a rank's file relative to the step's folder: "5d1c0a9be2f34471/rank-00003.safetensors".
std::string RankFile(std::string_view attempt, int rank);
/// Returns a new attempt's name: 16 random hex digits.
std::string NewAttempt();
/// Returns the content of a new fence, unlike any other one.
std::string NewFence();
/// Every whole manifest is at least this long: its fixed members alone are longer. A shorter object was cut off.
inline constexpr std::uint64_t kLeastManifestBytes = 128;
/// Returns whether the content of an object under a manifest's key is a fence. A manifest that was cut to a fence's
/// size is not.
bool IsFence(std::string_view content);

}  // namespace millrace::checkpoint
