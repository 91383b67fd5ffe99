// Judges a record without the records before it: whether a filter removes it, and its signature.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/data/compact/digest_index.h"
#include "millrace/data/compact/held_out_runs.h"
#include "millrace/data/compact/language.h"
#include "millrace/data/compact/min_hash.h"
#include "millrace/data/compact/text_patterns.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

/// The reason for which a record is left out. A record that several filters remove counts for the first one of this
/// list.
enum class RemovalReason : std::uint8_t {
  kBroken,  ///< the line is not a usable record
  kMinChars,
  kMaxChars,
  kScript,
  kLanguage,
  kMatch,
  kReject,
  kHeldOut,
  kExactDuplicate,
  kNearDuplicate,
};
inline constexpr std::size_t kRemovalReasons = 10;
/// Returns the reason's name in reports: "broken", "min_chars", "exact_duplicate".
std::string_view RemovalReasonName(RemovalReason reason);

/// The search for duplicates. kNear removes exact duplicates, too.
enum class DuplicateSearch : std::uint8_t { kNone, kExact, kNear };

/// Consecutive words that are an element of a text's set. 5 words: the choice of most published pipelines.
inline constexpr std::size_t kShingleWords = 5;

/// The criteria of a judge.
struct JudgeOptions {
  std::optional<std::uint64_t> min_chars, max_chars;  ///< Unicode characters of the text
  std::vector<std::string> scripts;                   ///< the text's main script is one of these; empty: any
  std::vector<std::string> languages = {};            ///< the text may be of one of these; empty: any
  const TextPatterns* patterns = nullptr;             ///< must outlive the judge; null: any text is wanted
  const HeldOutRuns* held_out = nullptr;              ///< must outlive the judge; null: nothing is held out
  DuplicateSearch duplicates = DuplicateSearch::kNone;
  Banding banding;  ///< for DuplicateSearch::kNear
};

/// One line of a page that is not blank.
struct JudgedRecord {
  std::uint32_t begin = 0, bytes = 0;  ///< in the page, without the newline and white space around the record
  std::uint32_t line = 0;              ///< in the page, from 0; blank lines count
  std::optional<RemovalReason> removal;
  BrokenReason broken{};  ///< with RemovalReason::kBroken
  bool has_signature = false;
  TextDigest digest;  ///< if duplicates are searched for and no filter removes the record
};

/// The records of a page in their order.
struct JudgedPage {
  std::vector<JudgedRecord> records;
  std::uint64_t lines = 0;
  std::vector<MinHashSignature> signatures;  ///< of the records with has_signature, in their order
  std::vector<std::uint32_t> band_hashes;    ///< of these signatures, one after the other
};

/// Judges records. Keeps its buffers between calls. One thread. The template must outlive it.
class RecordJudge {
 public:
  /// `languages`: with JudgeOptions::languages.
  RecordJudge(const RecordTemplate& record_template, JudgeOptions options,
              std::unique_ptr<LanguageDetector> languages = nullptr);
  /// `lines` are lines of JSON. The result depends on them and the options alone.
  JudgedPage JudgeLines(std::string_view lines);

 private:
  void JudgeText(std::string_view text, JudgedRecord& record, JudgedPage& page);
  std::optional<RemovalReason> Filter(std::string_view text);
  bool HasLanguage(std::string_view text) const;

  const JudgeOptions options_;
  const std::unique_ptr<LanguageDetector> languages_;
  RecordParser parser_;
  std::vector<std::uint64_t> words_, runs_;
};

}  // namespace millrace::data
