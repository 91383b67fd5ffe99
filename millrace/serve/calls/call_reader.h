// Finds calls of tools in the text of an answer, while it arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "millrace/serve/calls/call_scanner.h"
#include "millrace/serve/chat/tool_syntax.h"
#include "millrace/serve/protocol/answer.h"

namespace millrace::serve {

/// A piece of an answer: its words, or parts of its calls.
struct AnswerParts {
  std::string text;
  std::vector<ToolCallPart> calls;
  bool empty() const { return text.empty() && calls.empty(); }
};

/// Divides a text into words and calls, as a ToolSyntax spells them. A call has the name of one of the tools. Without a
/// mark before it, it has arguments, too: other JSON may have a name. What is no call stays text, byte for byte, but
/// for marks that frame lists of calls. All parts together are the same however the text was cut. One owner, no
/// locking.
class ToolCallParser {
 public:
  /// `names`: of the tools. With `is_call`, the text is one call, as JSON, and nothing else.
  ToolCallParser(ToolSyntax syntax, std::vector<std::string> names, bool is_call = false);

  /// Returns the marks that the text must have, although tokenizers may leave them out: as special tokens.
  std::vector<std::string_view> marks() const;
  AnswerParts Add(std::string_view text);
  /// Returns what was held back. Call it at the end of the text.
  AnswerParts Finish();
  /// The number of calls that have begun.
  std::size_t calls() const { return begun_; }
  /// Returns whether a call is complete.
  bool has_call() const { return complete_ > 0; }

 private:
  enum class State : std::uint8_t {
    kStart,    ///< of the answer: a call may begin without a mark
    kText,     ///< words; a mark may follow
    kBetween,  ///< behind a mark, or behind a call: another call may begin
    kCall,     ///< in a call
  };
  /// Moves text to pending_, without the marks that mean nothing. Holds back what may begin one, unless it is the end.
  void Arrive(std::string_view text, bool is_end);
  /// Takes what it can of pending_. Returns false if it wants more text.
  bool Step(AnswerParts& parts);
  bool AtStart();
  bool InText(AnswerParts& parts);
  bool Between(AnswerParts& parts);
  bool InCall(AnswerParts& parts);
  /// Emits the first `size` bytes of pending_ as words of the answer.
  void EmitText(std::size_t size, AnswerParts& parts);
  /// Emits text that looked like a call and is not one.
  void EmitRaw(AnswerParts& parts);
  void BeginCall();
  /// Returns whether what the scanner has read can be no call.
  bool IsNoCall() const;
  void EmitCall(AnswerParts& parts);

  const ToolSyntax syntax_;
  const std::vector<std::string> names_;
  const bool is_call_;
  const std::string_view mark_, end_mark_;  ///< empty: none
  State state_ = State::kText;
  std::string arriving_;  ///< what may begin a mark that means nothing
  std::string pending_;
  std::string raw_;        ///< the mark and the call, until a part of the call was emitted
  bool has_mark_ = false;  ///< one stands before the current call, or before the first one of its list
  std::optional<ToolCallScanner> scanner_;
  std::size_t begun_ = 0, complete_ = 0;
  bool emitted_call_ = false, emitted_arguments_ = false;  ///< of the current call
  bool emitted_text_ = false;                              ///< more than white space, since the last call
};

}  // namespace millrace::serve
