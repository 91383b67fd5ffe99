// Records of sequence classification: one text or two, and a class.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string_view>

#include "millrace/data/options/classification_options.h"
#include "millrace/data/records/broken_reason.h"

namespace millrace::data {

/// The largest number of a class. A guess: more classes than a model has. Keeps labels apart from kIgnoreLabel.
inline constexpr std::int32_t kMaxClass = 65'535;

struct LabelledRecord {
  std::string_view text, pair;  ///< `pair` is empty if the options name none
  std::int32_t label = 0;       ///< in [0, kMaxClass]
};

/// Parses records by the fields that the options name. Keeps its buffers between calls. One thread. The options must
/// outlive it.
class LabelledRecordParser {
 public:
  explicit LabelledRecordParser(const ClassificationOptions& options);
  ~LabelledRecordParser();

  /// Returns the texts and the class of `record`, or why it is broken. kNotClass: the label is neither the name of a
  /// class nor, where classes have no names, a number from 0 to kMaxClass. Valid until the next call.
  std::expected<LabelledRecord, BrokenReason> Parse(std::string_view record);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace millrace::data
