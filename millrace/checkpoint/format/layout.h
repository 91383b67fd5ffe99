// Where things lie under a checkpoint URL: docs/formats/checkpoint.md, "Keys" and "Fences". Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::checkpoint {

/// The size of every fence: {"fence":"<32 hex digits>"} and a newline. A manifest is never that short, so a listing
/// tells one from the other. An object of any other size under a manifest's key is a manifest, whole or damaged.
inline constexpr std::uint64_t kFenceBytes = 45;
inline constexpr std::uint64_t kMaxStep = 999'999'999'999'999'999;

/// Keys below one root. `root` is a key prefix, with or without a slash at its end; empty: the whole bucket.
class Layout {
 public:
  explicit Layout(std::string_view root);

  /// In front of every key below the root.
  const std::string& prefix() const { return root_; }
  std::string StepsPrefix() const { return root_ + "step-"; }
  std::string ManifestKey(std::uint64_t step) const { return StepName(step) + ".json"; }
  /// Everything of the step but its manifest; ends with a slash.
  std::string StepFolder(std::uint64_t step) const { return StepName(step) + "/"; }
  /// "…/step-00000150"
  std::string StepName(std::uint64_t step) const;

  /// A small object beside the manifest.
  struct Mark {
    enum class Kind { kPin, kHold, kGoing };  ///< going: a collector is about to remove the step
    std::uint64_t step = 0;
    Kind kind = Kind::kPin;
  };
  std::string PinKey(std::uint64_t step) const { return StepName(step) + ".pin"; }
  std::string NewHoldKey(std::uint64_t step) const;
  std::string NewGoingKey(std::uint64_t step) const;
  /// Of the step's manifest and all its marks.
  std::string MarksPrefix(std::uint64_t step) const { return StepName(step) + "."; }
  /// Nothing for any other key.
  std::optional<Mark> ParseMark(std::string_view key) const;

  /// A key below the root without it.
  std::string Relative(std::string_view key) const { return std::string(key.substr(root_.size())); }

  /// The step of a manifest's key, nothing for any other key.
  std::optional<std::uint64_t> StepOfManifest(std::string_view key) const;
  struct FileKey {
    std::uint64_t step = 0;
    std::string_view attempt;
  };
  /// Step and attempt of a file's key, nothing for any other key.
  std::optional<FileKey> ParseFileKey(std::string_view key) const;

 private:
  std::optional<std::uint64_t> ParseStep(std::string_view digits) const;
  std::string root_;  ///< empty, or ends with a slash
};

/// "5d1c0a9be2f34471/rank-00003.safetensors"
std::string RankFile(std::string_view attempt, int rank);
std::string NewAttempt();
std::string NewFence();
/// No manifest is shorter, whatever it holds: one that is was cut off.
inline constexpr std::uint64_t kLeastManifestBytes = 128;
/// Whether an object under a manifest's key is a fence. A manifest that was cut to a fence's size is none.
bool IsFence(std::string_view content);

}  // namespace millrace::checkpoint
