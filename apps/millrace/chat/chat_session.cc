#include "apps/millrace/chat/chat_session.h"

#include <fmt/ranges.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <thread>
#include <utility>

#include "apps/common/output.h"
#include "apps/millrace/watch/terminal.h"
#include "millrace/base/files/files.h"
#include "millrace/base/harmless_text.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::string_view kDim = "\x1b[2m", kRed = "\x1b[31m", kPlain = "\x1b[0m";
constexpr std::string_view kPrompt = "> ";
constexpr std::uint64_t kMaxFileBytes = 64 * kMiB;

double UnixNow() { return std::chrono::duration<double>(SystemClock().Wall().time_since_epoch()).count(); }

/// Prints an answer as it comes: harmless on a terminal, byte for byte in a pipe.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(std::string& text) : text_(text) {}
  void Add(std::string_view piece) {
    text_ += piece;
    std::size_t end = text_.size();
    if (text_.ends_with('\r')) --end;  // it may be half of a line's end
    Show(std::string_view(text_).substr(printed_, end - printed_));
    printed_ = end;
  }
  void Finish() {
    if (printed_ < text_.size()) Show(std::string_view(text_).substr(printed_));
    if (!text_.empty() && !text_.ends_with('\n')) WriteOutput("\n");
    FlushOutput();
  }

 private:
  void Show(std::string_view part) {
    WriteOutput(part);
    FlushOutput();
  }

  std::string& text_;
  std::size_t printed_ = 0;
};

}  // namespace

struct ChatSession::Command {
  std::string_view name, argument, help;
  Result<Next> (ChatSession::*run)(std::string_view argument);
};

std::span<const ChatSession::Command> ChatSession::Commands() {
  static constexpr std::array kCommands = {
      Command{"help", "", "this list", &ChatSession::Help},
      Command{"regenerate", "", "answer the last message once more", &ChatSession::Regenerate},
      Command{"edit", "TEXT", "replace the last message, and answer it", &ChatSession::Edit},
      Command{"new", "", "forget the messages; system prompt and settings stay", &ChatSession::New},
      Command{"system", "[TEXT]", "set the system prompt; without text: none", &ChatSession::System},
      Command{"model", "[NAME]", "ask another model of the server; without a name: list them", &ChatSession::Model},
      Command{"plain", "on|off", "send plain text, for models without a chat template", &ChatSession::Plain},
      Command{"stop", "[TEXT]", "end answers before this text, too; without text: before none", &ChatSession::Stop},
      Command{"settings", "", "show model, system prompt and settings", &ChatSession::Settings},
      Command{"save", "FILE", "write the conversation; the chat page can import it", &ChatSession::Save},
      Command{"load", "FILE", "go on with a conversation of /save, or of the chat page", &ChatSession::Load},
      Command{"quit", "", "end, as Ctrl-D", &ChatSession::Quit},
  };
  return kCommands;
}

ChatSession::ChatSession(const Context& context, serve::ChatClient& client, Options options)
    : context_(context), client_(client), options_(std::move(options)), colours_(WantsColours()) {}

/// Asks for the next answer. `text` gets what came of it, also if it broke off. With an editor, Ctrl-C stops the
/// answer.
Result<serve::ChatAnswer> ChatSession::Ask(std::string& text, LineEditor* editor) {
  const serve::Conversation::Request request = conversation_.NextRequest(options_.model.id, options_.model.context);
  std::stop_source stop;
  const std::stop_callback end_with_program(context_.stop, [&stop] { stop.request_stop(); });
  AnswerPrinter printer(text);
  const bool prints = editor != nullptr || !context_.globals.json;
  const auto take = [&](std::string_view piece) {
    if (prints) {
      printer.Add(piece);
    } else {
      text += piece;
    }
  };
  Result<serve::ChatAnswer> answer = Fail(Code::kInternal, "no answer");
  if (editor == nullptr) {
    answer = client_.Ask(request, take, {.stop = stop.get_token()});
  } else {
    const UniqueFd done(::eventfd(0, EFD_CLOEXEC));
    const std::jthread asking([&] {
      answer = client_.Ask(request, take, {.stop = stop.get_token()});
      (void)::eventfd_write(done.get(), 1);
    });
    editor->WaitFor(done.get(), context_.stop, [&stop] { stop.request_stop(); });
  }
  if (prints) printer.Finish();
  return answer;
}

Status ChatSession::Once(std::string message) {
  conversation_.messages.push_back({"user", std::move(message), ""});
  std::string text;
  const serve::ChatAnswer answer = MR_TRY(Ask(text, nullptr));
  if (!context_.globals.json) return {};
  Json line = {{"model", options_.model.id}, {"text", text}, {"finish_reason", answer.finish_reason}};
  if (answer.usage) {
    line["usage"] = {{"prompt_tokens", answer.usage->prompt_tokens},
                     {"completion_tokens", answer.usage->completion_tokens}};
  }
  line["first_token_s"] = SecondsOf(answer.first_token);
  line["total_s"] = SecondsOf(answer.total);
  const std::string json = DumpJson(line);
  WriteOutput(json + "\n");
  FlushOutput();
  return {};
}

void ChatSession::PrintNote(const std::string& text) {
  if (colours_) WriteControls(kDim);
  WriteOutput(text);
  if (colours_) WriteControls(kPlain);
  WriteOutput("\n");
  FlushOutput();
}

void ChatSession::PrintProblem(const Error& error) {
  std::string text = error.ToString();
  if (options_.server != nullptr) {
    if (std::string ended = options_.server->Ended(); !ended.empty()) text = std::move(ended);
  }
  WriteErrorControls(fmt::format("{}{}{}\n", colours_ ? kRed : "", HarmlessText(text), colours_ ? kPlain : ""));
}

void ChatSession::PrintFigures(const serve::ChatAnswer& answer) {
  if (!answer.usage || context_.globals.quiet) return;
  std::string text = fmt::format("[{} + {} tokens", answer.usage->prompt_tokens, answer.usage->completion_tokens);
  const double after_first = SecondsOf(answer.total - answer.first_token);
  if (answer.usage->completion_tokens > 1 && after_first > 0) {
    text += fmt::format(", {:.1f} tokens/s", static_cast<double>(answer.usage->completion_tokens - 1) / after_first);
  }
  text += fmt::format(", first after {:.2f} s", SecondsOf(answer.first_token));
  if (answer.finish_reason == "length") text += ", ended at the limit of tokens";
  PrintNote(text + "]");
}

/// Answers the last message, which is the user's. A problem is told, and the chat goes on.
Status ChatSession::Answer(LineEditor& editor) {
  std::string text;
  const Result<serve::ChatAnswer> answer = Ask(text, &editor);
  if (!text.empty()) conversation_.messages.push_back({"assistant", text, options_.model.id});
  if (context_.stop.stop_requested()) return Fail(Code::kCancelled, "the chat was ended by a signal");
  if (answer) {
    PrintFigures(*answer);
  } else if (answer.error().code() == Code::kCancelled) {
    PrintNote("[stopped]");
  } else {
    PrintProblem(answer.error());
    const bool wants_plain = answer.error().message().find("template") != std::string::npos;
    PrintNote(wants_plain && !conversation_.plain_text ? "[/plain on, then /regenerate, sends plain text]"
                                                       : "[/regenerate tries again]");
  }
  return {};
}

Status ChatSession::Interactive() {
  if (!context_.globals.quiet) {
    PrintNote(fmt::format("{} at {}. /help lists the commands, Ctrl-C stops an answer, Ctrl-D ends.",
                          options_.model.id.empty() ? "The model" : options_.model.id, client_.url()));
  }
  const auto editor = MR_TRY(LineEditor::Open());
  for (const serve::ChatMessage& message : conversation_.messages) {
    if (message.role == "user") editor->Remember(message.content);
  }
  while (OutputFailure() == 0) {
    const auto line = editor->Read(kPrompt, context_.stop);
    if (context_.stop.stop_requested()) return Fail(Code::kCancelled, "the chat was ended by a signal");
    if (!line) return {};
    const std::string_view text = Trim(*line);
    if (text.empty()) continue;
    editor->Remember(*line);
    Next next = Next::kAnswer;
    if (text.starts_with('/') && !text.starts_with("//")) {
      const auto ran = RunCommand(text);
      if (!ran) PrintProblem(ran.error());
      next = ran.value_or(Next::kPrompt);
    } else {
      conversation_.messages.push_back({"user", std::string(text.substr(text.starts_with("//") ? 1 : 0)), ""});
    }
    if (next == Next::kQuit) return {};
    if (next == Next::kAnswer) MR_TRY(Answer(*editor));
  }
  return {};
}

Result<ChatSession::Next> ChatSession::RunCommand(std::string_view line) {
  const std::size_t end = std::min(line.find_first_of(" \n"), line.size());
  const std::string_view name = line.substr(1, end - 1), argument = Trim(line.substr(end));
  const auto commands = Commands();
  const auto command = std::ranges::find(commands, name, &Command::name);
  if (command != commands.end()) {
    if (command->argument.empty() && !argument.empty()) {
      return Fail(Code::kInvalidArgument,
                  "/{} takes no argument; begin a message with // to send one that begins with /", name);
    }
    return (this->*command->run)(argument);
  }
  std::vector<std::string_view> names = serve::ParameterNames();
  if (std::ranges::find(names, name) != names.end()) {
    if (argument.empty()) return Settings("");
    MR_TRY(conversation_.SetParameter(name, argument));
    return Next::kPrompt;
  }
  for (const Command& known : commands) names.push_back(known.name);
  return Fail(Code::kInvalidArgument, "{}; see /help, or begin a message with // to send one that begins with /",
              UnknownName("command", name, names));
}

Result<ChatSession::Next> ChatSession::Help(std::string_view) {
  for (const Command& command : Commands()) {
    Print("  {:22} {}\n", fmt::format("/{} {}", command.name, command.argument), command.help);
  }
  Print("  {:22} {}\n", fmt::format("/{} X", fmt::join(serve::ParameterNames(), " X, /")), "");
  Print("  {:22} set how words are chosen; `default`: as the server does\n", "");
  Print("Alt-Enter begins a line. Arrow keys move, and bring earlier messages back. //text sends \"/text\".\n");
  FlushOutput();
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Regenerate(std::string_view) {
  if (!conversation_.DropAnswer())
    return Fail(Code::kInvalidArgument, "there is no message to answer; write one first");
  return Next::kAnswer;
}

Result<ChatSession::Next> ChatSession::Edit(std::string_view argument) {
  if (argument.empty()) return Fail(Code::kInvalidArgument, "/edit needs the new text");
  if (!conversation_.DropAnswer())
    return Fail(Code::kInvalidArgument, "there is no message to replace; write one first");
  conversation_.messages.back().content = argument;
  return Next::kAnswer;
}

Result<ChatSession::Next> ChatSession::New(std::string_view) {
  conversation_.messages.clear();
  options_.file.clear();
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::System(std::string_view argument) {
  conversation_.system = argument;
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Model(std::string_view argument) {
  if (argument.empty()) {
    for (const serve::ServedModel& model : options_.models) {
      Print("{} {}\n", model.id == options_.model.id ? "*" : " ", model.id);
    }
    FlushOutput();
    return Next::kPrompt;
  }
  const auto found = std::ranges::find(options_.models, argument, &serve::ServedModel::id);
  if (found != options_.models.end()) {
    options_.model = *found;
    return Next::kPrompt;
  }
  std::vector<std::string_view> names;
  for (const serve::ServedModel& model : options_.models) names.push_back(model.id);
  return Fail(Code::kNotFound, "{}; see /model for those of the server", UnknownName("model", argument, names));
}

Result<ChatSession::Next> ChatSession::Plain(std::string_view argument) {
  if (argument != "on" && argument != "off") return Fail(Code::kInvalidArgument, "expected /plain on or /plain off");
  conversation_.plain_text = argument == "on";
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Stop(std::string_view argument) {
  if (argument.empty()) {
    conversation_.stop.clear();
  } else {
    conversation_.stop.emplace_back(argument);
  }
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Settings(std::string_view) {
  const auto show = [](std::string_view name, const std::string& value) { Print("  {:12} {}\n", name, value); };
  show("model", options_.model.id);
  show("system", conversation_.system.empty() ? "none" : conversation_.system);
  show("plain", conversation_.plain_text ? "on" : "off");
  for (const std::string_view name : serve::ParameterNames()) {
    const Json* value = JsonFind(conversation_.parameters, name);
    show(name, value != nullptr ? DumpJson(*value) : "default");
  }
  for (const std::string& text : conversation_.stop) show("stop", text);
  FlushOutput();
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Save(std::string_view argument) {
  const std::string file(argument.empty() ? options_.file : argument);
  if (file.empty()) return Fail(Code::kInvalidArgument, "/save needs the name of a file");
  if (file != options_.file && std::filesystem::exists(std::filesystem::symlink_status(file))) {
    return Fail(Code::kAlreadyExists, "{} exists; choose another name, or remove it", file);
  }
  // A conversation is nobody else's business.
  MR_TRY(WriteFileAtomic(file, AsBytes(conversation_.Save(UnixNow())), 0600));
  options_.file = file;
  PrintNote(fmt::format("[saved to {}]", file));
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Load(std::string_view argument) {
  const std::string file(argument);
  if (file.empty()) return Fail(Code::kInvalidArgument, "/load needs the name of a file");
  conversation_ = MR_TRY(serve::Conversation::Load(MR_TRY(ReadFile(file, kMaxFileBytes)), file));
  options_.file = file;
  for (const serve::ChatMessage& message : conversation_.messages) {
    Print("{}{}\n", message.role == "user" ? kPrompt : "", message.content);
  }
  FlushOutput();
  return Next::kPrompt;
}

Result<ChatSession::Next> ChatSession::Quit(std::string_view) { return Next::kQuit; }

}  // namespace millrace::cli
