// The reasons for which a line is not a usable record.
#pragma once

#include <cstdint>
#include <string_view>

#include "millrace/base/result.h"

namespace millrace::data {

/// The longest record, in bytes. Longer lines are kTooLong. 16 MiB is a guess.
inline constexpr std::uint64_t kMaxRecordBytes = 16ull << 20;

enum class BrokenReason : std::uint8_t {
  kNotJson,
  kNotUtf8,
  kMissingField,
  kNotText,
  kEmpty,
  kTooLong,
  kNotChat,
  kNotClass,
  kNoLabel,    ///< no answer begins within a row, or its messages have a weight of 0
  kBadWeight,  ///< a message's weight is neither 0 nor 1
  // Members of a record or a message that a layout does not write.
  kUnrenderedTools,
  kUnrenderedFunctions,
  kUnrenderedToolCalls,
  kUnrenderedFunctionCall,
  kUnrenderedReasoningContent,
  kUnrenderedReasoning,
  kUnrenderedThinking,
  kUnrenderedName,
  kUnrenderedImage,
  kUnrenderedAudio,
  kUnrenderedVideo,
  kUnrenderedPart,  ///< a part of a content, of another type than text
  // Reasons that a model's own chat template gives.
  kTemplateError,   ///< the template refuses the conversation, or takes too much work
  kUnmarkedAnswer,  ///< where an answer is in the template's text, or which tokens it has, is not certain
  kBadMember        ///< "tools", "tool_calls" or "chat_template_kwargs" of another form, or a number of over 63 bits
};
inline constexpr int kBrokenReasons = 25;
std::string_view BrokenReasonName(BrokenReason reason);  ///< "not_json", as in docs/formats/index.md
/// Errors: kInvalidArgument if no reason has that name.
Result<BrokenReason> ParseBrokenReason(std::string_view name);

}  // namespace millrace::data
