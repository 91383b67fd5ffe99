// Conversations: how records spell them, and how chat models want them written.
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
  /// Valid until the next call. The roles of other spellings ("human", "gpt") become those above.
  std::expected<std::span<const Message>, Broken> Parse(std::string_view record);

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

/// Each writes a conversation as the chat template published with the models does, and marks what the assistant says,
/// the token that ends its turn included. Text of the record never becomes a special token. Yields kNotChat for roles
/// that the template does not render.
using ChatLayout = std::optional<Broken>(std::span<const Message> messages, DocumentScript& script);
ChatLayout WriteLlama2, WriteLlama3, WriteChatml, WriteZephyr, WriteGemma;

/// "### Human: … ### Assistant: …" in one text: learnt is what follows "### Assistant:", up to the next "### Human:".
std::optional<Broken> WriteGuanaco(std::string_view text, DocumentScript& script);

/// Without the white space at both ends, as Python's str.strip and Jinja's trim see it.
std::string_view StripSpace(std::string_view text);

}  // namespace millrace::data
