// A conversation with a model: its messages and the settings of its requests.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/result.h"

namespace millrace::serve {

struct ChatMessage {
  std::string role;  ///< "user" or "assistant"
  std::string content;
  std::string model;  ///< who answered; empty for the user
};

/// The names of the settings that SetParameter knows, as in the requests.
std::vector<std::string_view> ParameterNames();

/// A plain value. Not thread-safe.
struct Conversation {
  std::string system;  ///< empty: none
  std::vector<ChatMessage> messages;
  bool plain_text = false;           ///< send one text to /v1/completions, for models without a chat template
  Json parameters = Json::object();  ///< "temperature", "top_p", …; what is absent, the server chooses
  std::vector<std::string> stop;

  /// Sets a parameter to the number that `text` has. "default" leaves it to the server.
  /// Errors: kInvalidArgument if the name is unknown or the number is none or out of range.
  Status SetParameter(std::string_view name, std::string_view text);

  /// The path and the body of a streamed request for the next answer. `context` is the model's context in tokens; 0 if
  /// unknown. An empty model is left out. REQUIRES: the last message is the user's.
  struct Request {
    std::string path;
    Json body;
  };
  Request NextRequest(const std::string& model, int context) const;

  /// Takes away the last answer. Returns whether the last message is now the user's.
  bool DropAnswer();

  /// The file of the chat page's export (docs/guide/serve.md). Load() reads the branch on the screen of the newest
  /// conversation. Errors: kInvalidArgument if it is no such file.
  std::string Save(double now_s) const;
  static Result<Conversation> Load(std::string_view text, std::string_view what);
};

}  // namespace millrace::serve
