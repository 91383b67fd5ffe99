#include "millrace/data/records/broken_reason.h"

#include <array>

namespace millrace::data {
namespace {

constexpr std::array<std::string_view, kBrokenReasons> kBrokenReasonNames = {"not_json",
                                                                             "not_utf8",
                                                                             "missing_field",
                                                                             "not_text",
                                                                             "empty",
                                                                             "too_long",
                                                                             "not_chat",
                                                                             "not_class",
                                                                             "no_label",
                                                                             "bad_weight",
                                                                             "unrendered_tools",
                                                                             "unrendered_functions",
                                                                             "unrendered_tool_calls",
                                                                             "unrendered_function_call",
                                                                             "unrendered_reasoning_content",
                                                                             "unrendered_reasoning",
                                                                             "unrendered_thinking",
                                                                             "unrendered_name",
                                                                             "unrendered_image",
                                                                             "unrendered_audio",
                                                                             "unrendered_video",
                                                                             "unrendered_content_part",
                                                                             "template_error",
                                                                             "unmarked_answer",
                                                                             "bad_member"};

}  // namespace

std::string_view BrokenReasonName(BrokenReason reason) { return kBrokenReasonNames[static_cast<std::size_t>(reason)]; }

Result<BrokenReason> ParseBrokenReason(std::string_view name) {
  for (std::size_t i = 0; i < kBrokenReasonNames.size(); ++i) {
    if (kBrokenReasonNames[i] == name) return static_cast<BrokenReason>(i);
  }
  return Fail(Code::kInvalidArgument,
              "no reason for a broken record is called \"{}\"; if a newer Millrace wrote the index: update this one",
              name);
}

}  // namespace millrace::data
