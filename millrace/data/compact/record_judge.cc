#include "millrace/data/compact/record_judge.h"

#include <algorithm>
#include <array>
#include <utility>

#include "millrace/data/compact/word_hashes.h"
#include "millrace/data/sources/survey.h"

namespace millrace::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::uint64_t Characters(std::string_view text) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Returns the line without white space and byte order mark around it.
std::string_view StripLine(std::string_view line) {
  if (line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t first = line.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kSpace) + 1 - first);
}

}  // namespace

std::string_view RemovalReasonName(RemovalReason reason) {
  constexpr std::array<std::string_view, kRemovalReasons> kNames = {
      "broken", "min_chars", "max_chars", "script",          "language",
      "match",  "reject",    "held_out",  "exact_duplicate", "near_duplicate"};
  return kNames[static_cast<std::size_t>(reason)];
}

RecordJudge::RecordJudge(const RecordTemplate& record_template, JudgeOptions options,
                         std::unique_ptr<LanguageDetector> languages)
    : options_(std::move(options)), languages_(std::move(languages)), parser_(record_template) {}

JudgedPage RecordJudge::JudgeLines(std::string_view lines) {
  JudgedPage page;
  for (std::size_t at = 0; at < lines.size(); ++page.lines) {
    const std::size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = StripLine(lines.substr(at, end - at));
    at = end + 1;
    if (line.empty()) continue;
    JudgedRecord record{.begin = static_cast<std::uint32_t>(line.data() - lines.data()),
                        .bytes = static_cast<std::uint32_t>(line.size()),
                        .line = static_cast<std::uint32_t>(page.lines)};
    if (auto text = parser_.Parse(line)) {
      JudgeText(*text, record, page);
    } else {
      record.removal = RemovalReason::kBroken;
      record.broken = text.error();
    }
    page.records.push_back(record);
  }
  return page;
}

void RecordJudge::JudgeText(std::string_view text, JudgedRecord& record, JudgedPage& page) {
  if (options_.held_out || options_.duplicates == DuplicateSearch::kNear) HashWords(text, words_);
  record.removal = Filter(text);
  if (record.removal || options_.duplicates == DuplicateSearch::kNone) return;
  record.digest = TextDigest::Of(text);
  if (options_.duplicates != DuplicateSearch::kNear || words_.empty()) return;
  HashRuns(words_, kShingleWords, runs_);
  const MinHashValues values = MinHash(runs_);
  record.has_signature = true;
  page.signatures.push_back(ToSignature(values));
  AppendBandHashes(values, options_.banding, page.band_hashes);
}

bool RecordJudge::HasLanguage(std::string_view text) const {
  const std::vector<std::string> guessed = languages_->DetectLanguages(text);
  if (guessed.empty()) return std::ranges::find(options_.languages, kUnknownLanguage) != options_.languages.end();
  return std::ranges::find_first_of(guessed, options_.languages) != guessed.end();
}

std::optional<RemovalReason> RecordJudge::Filter(std::string_view text) {
  if (options_.min_chars || options_.max_chars) {
    const std::uint64_t characters = Characters(text);
    if (options_.min_chars && characters < *options_.min_chars) return RemovalReason::kMinChars;
    if (options_.max_chars && characters > *options_.max_chars) return RemovalReason::kMaxChars;
  }
  if (!options_.scripts.empty() && std::ranges::find(options_.scripts, ScriptOf(text)) == options_.scripts.end()) {
    return RemovalReason::kScript;
  }
  if (languages_ && !HasLanguage(text)) return RemovalReason::kLanguage;
  if (options_.patterns && !options_.patterns->HasAllWanted(text)) return RemovalReason::kMatch;
  if (options_.patterns && options_.patterns->HasUnwanted(text)) return RemovalReason::kReject;
  if (options_.held_out && options_.held_out->Shares(words_, runs_)) return RemovalReason::kHeldOut;
  return std::nullopt;
}

}  // namespace millrace::data
