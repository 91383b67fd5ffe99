// Conversations: how records hold them, and how the chat templates of models write them.
#pragma once

#include <expected>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "millrace/data/documents/document_script.h"
#include "millrace/data/records/record_template.h"

namespace millrace::data {

struct Message {
  std::string_view role;  ///< "user", "assistant", "system", or what the record says
  std::string_view content;
};

/// Reads the conversation of a record: its list "messages" or "conversations", of {role, content} or {from, value}.
/// Keeps its buffers. One thread.
class ConversationParser {
 public:
  ConversationParser();
  ~ConversationParser();
  /// Returns the messages, valid until the next call. Other names of roles ("human", "gpt") become those above.
  std::expected<std::span<const Message>, BrokenReason> Parse(std::string_view record);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// Writes a conversation as the chat template published with the models does. Marks as trained what the assistant says,
/// with the token that ends its turn. Text of the record never becomes a special token. Returns kNotChat if the
/// template does not render a role.
using ChatLayout = std::optional<BrokenReason>(std::span<const Message> messages, DocumentScript& script);
ChatLayout WriteLlama2, WriteLlama3, WriteChatml, WriteZephyr, WriteGemma;

/// Writes one text "### Human: … ### Assistant: …". The text from "### Assistant:" to the next "### Human:" is trained.
std::optional<BrokenReason> WriteGuanaco(std::string_view text, DocumentScript& script);

/// Returns `text` without the white space at both ends, as Python's str.strip and Jinja's trim define it.
std::string_view StripSpace(std::string_view text);

}  // namespace millrace::data
