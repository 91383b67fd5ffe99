// A chat in the terminal: messages and answers in turn, and the commands in between.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/millrace/chat/line_editor.h"
#include "apps/millrace/chat/model_server.h"
#include "apps/millrace/cli/cli.h"
#include "millrace/base/result.h"
#include "millrace/serve/client/chat_client.h"
#include "millrace/serve/client/conversation.h"

namespace millrace::cli {

/// One conversation with one server. One thread.
class ChatSession {
 public:
  struct Options {
    serve::Conversation conversation;
    std::vector<serve::ServedModel> models;
    serve::ServedModel model;       ///< the one that is asked; no id: the server's own choice
    std::string file;               ///< where the conversation was loaded from; empty: it is new
    ModelServer* server = nullptr;  ///< the server of this chat alone; null: another's
  };
  /// REQUIRES: `context`, `client` and the server outlive this object.
  ChatSession(const Context& context, serve::ChatClient& client, Options options);

  /// Asks one question. Prints the answer as it comes, or all of it as a JSON object with --json.
  Status Once(std::string message);
  /// Talks with the user until Ctrl-D, /quit or a signal. REQUIRES: standard input and output are a terminal.
  Status Interactive();

 private:
  struct Command;
  static std::span<const Command> Commands();

  Result<serve::ChatAnswer> Ask(std::string& text, LineEditor* editor);
  Status Answer(LineEditor& editor);
  void PrintFigures(const serve::ChatAnswer& answer);
  void PrintProblem(const Error& error);
  void PrintNote(const std::string& text);

  /// The next action of the session after a command. Commands print what they have to say.
  enum class Next { kPrompt, kAnswer, kQuit };
  Result<Next> RunCommand(std::string_view line);
  Result<Next> Help(std::string_view argument);
  Result<Next> Regenerate(std::string_view argument);
  Result<Next> Edit(std::string_view argument);
  Result<Next> New(std::string_view argument);
  Result<Next> System(std::string_view argument);
  Result<Next> Model(std::string_view argument);
  Result<Next> Plain(std::string_view argument);
  Result<Next> Stop(std::string_view argument);
  Result<Next> Settings(std::string_view argument);
  Result<Next> Save(std::string_view argument);
  Result<Next> Load(std::string_view argument);
  Result<Next> Quit(std::string_view argument);

  const Context& context_;
  serve::ChatClient& client_;
  Options options_;
  serve::Conversation& conversation_ = options_.conversation;
  const bool colours_;
};

}  // namespace millrace::cli
