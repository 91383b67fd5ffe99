// Rewrites many objects of records as few shards, without duplicates and unwanted records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "millrace/base/bytes.h"
#include "millrace/base/json.h"
#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/data/compact/record_judge.h"
#include "millrace/data/compression/compression.h"
#include "millrace/data/options/data_source.h"
#include "millrace/object/connection.h"

namespace millrace::data {

struct CompactOptions {
  std::vector<DataSource> sources;       ///< each object is read once, in this order; weights are ignored
  std::string template_text = "{text}";  ///< makes the text that filters and duplicates are about
  std::string output;                    ///< URL of a folder; with dry_run it may be empty
  /// Bytes of JSON in a shard, before compression. 128 MiB: large enough that requests do not count, and four shards
  /// fit in memory.
  std::uint64_t shard_bytes = 128 * kMiB;
  Compression compression = Compression::kNone;

  DuplicateSearch duplicates = DuplicateSearch::kNone;
  double similarity = 0.8;  ///< for DuplicateSearch::kNear: the least similarity of a duplicate
  std::optional<std::uint64_t> min_chars, max_chars;  ///< Unicode characters of the text
  std::vector<std::string> match;                     ///< RE2; each must match somewhere in the text
  std::vector<std::string> reject;                    ///< RE2; none may match in the text
  std::vector<std::string> scripts;                   ///< as ScriptOf() (survey.h) names them; empty: any
  /// ISO 639 codes, or "unknown" (language.h): a text stays that may be of one of them; empty: any.
  std::vector<std::string> languages;
  std::vector<DataSource> held_out;  ///< read by the same template
  std::size_t held_out_words = 13;   ///< as GPT-3's paper has it (held_out_runs.h)

  /// The most memory of the indexes of duplicates and of held-out texts, at the end of a page.
  std::uint64_t index_bytes = UINT64_MAX;
  bool force = false;    ///< replace the result of an earlier run
  bool dry_run = false;  ///< write nothing
  int threads = 2;
};

/// The limits of the options.
inline constexpr double kMinSimilarity = 0.5;          ///< below, nearly all texts of a language would be candidates
inline constexpr std::uint64_t kMaxShardBytes = kGiB;  ///< a few shards are held in memory

struct CompactResult {
  Json report;           ///< as CompactReport::ToJson() makes it
  bool resumed = false;  ///< an earlier run had staged everything; this one only published
};

/// Reports that `done` of `known` bytes of the sources are read. The calling thread calls it.
using CompactProgress = std::function<void(std::uint64_t done, std::uint64_t known)>;

/// Reads the records of the sources in their order. Removes broken records, those that a filter removes, and those with
/// the text of an earlier kept record, or with nearly its text. Writes the others, unchanged as lines of JSON, to
/// shards. The shards and the report appear together at the end (output_folder.h). The result does not depend on
/// `threads`. A stopped run that was not publishing begins again. Two runs must not write to the same folder at the
/// same time.
///
/// Holds four shards and the pages of PageReader in memory, and for each kept record up to 64 bytes with kExact, and
/// 650 to 904 bytes with kNear at a similarity of 0.8. Held-out texts take 16 to 32 bytes a word. Blocks.
/// Errors: kInvalidArgument if options are out of their limits or a source holds token ids; kNotEmpty if the output
/// holds objects; kUnsupported if a filter by language has no library; kResourceExhausted if an index grows beyond
/// index_bytes; kStale if a source changes meanwhile.
Result<CompactResult> Compact(object::Connection& connection, const CompactOptions& options,
                              const CompactProgress& progress, const Logger& log, object::Call call = {});

}  // namespace millrace::data
