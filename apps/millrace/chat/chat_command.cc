// `millrace chat`: a chat with a model in the terminal.
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/common/output.h"
#include "apps/millrace/chat/chat_session.h"
#include "apps/millrace/chat/model_server.h"
#include "apps/millrace/cli/cli.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/http/server/access.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMaxKeyFileBytes = 64 * kKiB;
constexpr std::size_t kMaxInputBytes = 16 * kMiB;
constexpr std::uint64_t kMaxConversationBytes = 64 * kMiB;

struct ChatFlags {
  std::string target, key_file, model, load, message;
  std::vector<std::string> serve_flags, stop;
  std::optional<std::string> system;
  std::vector<std::pair<std::string, std::string>> parameters;  ///< as in Conversation::SetParameter
  bool plain = false;
};

bool IsServer(const std::string& target) { return target.starts_with("http://") || target.starts_with("https://"); }

/// The first key of a file in the form of `serve --api-key-file`.
Result<std::string> ReadKey(const std::string& file) {
  const std::string text = MR_TRY(ReadFile(file, kMaxKeyFileBytes));
  for (std::string_view line : Split(text, '\n')) {
    line = Trim(line);
    if (!line.empty() && !line.starts_with('#')) return std::string(line);
  }
  return Fail(Code::kInvalidArgument, "{} has no key; write the key alone into its first line", file);
}

Result<std::string> ReadInput() {
  std::string text;
  while (true) {
    char bytes[16 * 1024];
    const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Fail(ErrnoError(errno, "cannot read standard input"));
    if (n == 0) {
      if (text.ends_with('\n')) text.pop_back();  // the line's end is not part of the message
      return text;
    }
    text.append(bytes, static_cast<std::size_t>(n));
    if (text.size() > kMaxInputBytes)
      return Fail(Code::kInvalidArgument, "the message is longer than 16 MiB; shorten the message");
  }
}

/// Keys go in clear text to http:// servers: not over a network.
Status CheckKeyStaysPrivate(const std::string& url, const std::string& key) {
  std::string_view rest = url;
  if (key.empty() || !rest.starts_with("http://")) return {};
  rest.remove_prefix(std::string_view("http://").size());
  if (http::IsLoopbackHost(http::HostOfAuthority(rest.substr(0, rest.find('/'))))) return {};
  PrintError("millrace chat: the key goes to {} in clear text; https:// would hide it\n", url);
  return {};
}

Result<serve::Conversation> BeginConversation(const ChatFlags& flags) {
  serve::Conversation conversation;
  if (!flags.load.empty()) {
    conversation = MR_TRY(serve::Conversation::Load(MR_TRY(ReadFile(flags.load, kMaxConversationBytes)), flags.load));
  }
  if (flags.system) conversation.system = *flags.system;
  if (flags.plain) conversation.plain_text = true;
  for (const auto& [name, value] : flags.parameters) MR_TRY(conversation.SetParameter(name, value));
  conversation.stop.insert(conversation.stop.end(), flags.stop.begin(), flags.stop.end());
  return conversation;
}

Result<serve::ServedModel> ChooseModel(const std::vector<serve::ServedModel>& models, const std::string& wanted) {
  if (wanted.empty()) return models.empty() ? serve::ServedModel() : models.front();
  if (auto found = std::ranges::find(models, wanted, &serve::ServedModel::id); found != models.end()) return *found;
  std::vector<std::string_view> names;
  for (const serve::ServedModel& model : models) names.push_back(model.id);
  return Fail(Code::kNotFound, "{}; choose one of those of the server: {}", UnknownName("model", wanted, names),
              fmt::join(names, ", "));
}

/// Returns the name of the adapter if the flags of `millrace serve` name exactly one: NAME of "--adapter NAME=URL".
std::string OnlyAdapter(const std::vector<std::string>& serve_flags) {
  constexpr std::string_view kFlag = "--adapter";
  std::string name;
  for (std::size_t i = 0; i < serve_flags.size(); ++i) {
    std::string_view value;
    if (serve_flags[i] == kFlag && i + 1 < serve_flags.size()) value = serve_flags[i + 1];
    if (serve_flags[i].starts_with("--adapter=")) value = std::string_view(serve_flags[i]).substr(kFlag.size() + 1);
    if (value.empty()) continue;
    if (!name.empty()) return "";
    name = value.substr(0, value.find('='));
  }
  return name;
}

Result<int> Chat(const Context& context, const ChatFlags& flags) {
  const bool is_server = IsServer(flags.target);
  if (is_server && !flags.serve_flags.empty()) {
    return Fail(Code::kInvalidArgument, "flags of `millrace serve` need a model's URL: {} runs already", flags.target);
  }
  if (!is_server && !flags.key_file.empty()) {
    return Fail(Code::kInvalidArgument, "--api-key-file is for the URL of a server; {} gets one of its own",
                flags.target);
  }
  // Before a model is loaded: what is wrong with the flags, and the question.
  serve::Conversation conversation = MR_TRY(BeginConversation(flags));
  const bool interactive =
      flags.message.empty() && !context.globals.json && ::isatty(STDIN_FILENO) == 1 && ::isatty(STDOUT_FILENO) == 1;
  std::string message = flags.message;
  if (!interactive && message.empty()) message = MR_TRY(ReadInput());
  if (!interactive && Trim(message).empty()) {
    return Fail(Code::kInvalidArgument, "there is no message: give --message, or write it to standard input");
  }
  std::unique_ptr<ModelServer> server;
  serve::ChatClient::Options options{.url = flags.target, .ca_bundle = context.globals.connect.ca_bundle};
  if (is_server) {
    options.proxies = http::Proxies::FromEnvironment([](const char* name) -> std::optional<std::string> {
      const char* value = std::getenv(name);
      return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
    });
    if (!flags.key_file.empty()) options.key = MR_TRY(ReadKey(flags.key_file));
    MR_TRY(CheckKeyStaysPrivate(options.url, options.key));
  } else {
    if (interactive && !context.globals.quiet) PrintError("loading {} …\n", flags.target);
    server = MR_TRY(ModelServer::Start(context, flags.target, flags.serve_flags));
    options.url = server->url();
    options.key = server->key();
  }
  serve::ChatClient client(std::move(options));
  std::vector<serve::ServedModel> models = MR_TRY(client.Models({.stop = context.stop}));
  serve::ServedModel model =
      MR_TRY(ChooseModel(models, flags.model.empty() ? OnlyAdapter(flags.serve_flags) : flags.model));
  ChatSession session(context, client,
                      {.conversation = std::move(conversation),
                       .models = std::move(models),
                       .model = std::move(model),
                       .file = flags.load,
                       .server = server.get()});
  if (interactive) {
    MR_TRY(session.Interactive());
  } else {
    MR_TRY(session.Once(std::move(message)));
  }
  return kExitOk;
}

}  // namespace

void AddChatCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<ChatFlags>();
  CLI::App* chat = AddCommand(app, context, "chat", "Chat with a served model, or with a model's URL",
                              "  millrace chat http://127.0.0.1:8080\n"
                              "  millrace chat s3://runs/llama-demo\n"
                              "  millrace chat s3://models/llama-2-7b --system 'Be short.' -- --precision bf16\n"
                              "  millrace chat http://127.0.0.1:8080 --message 'Why is the sky blue?'\n"
                              "  git diff | millrace --json chat http://127.0.0.1:8080 | jq -r .text",
                              [&context, flags] {
                                const Result<int> done = Chat(context, *flags);
                                return done ? *done : ReportError(context, done.error());
                              });
  chat->add_option("URL|MODEL", flags->target,
                   "A server (http://…), or a model as `millrace serve` takes it; then a server is started on loopback "
                   "and stopped at the end")
      ->required();
  chat->add_option("SERVE-FLAGS", flags->serve_flags, "After --: flags of the server that is started");
  chat->add_option("--message", flags->message, "Ask this, print the answer and end; so does a pipe on standard input");
  chat->add_option("--model", flags->model,
                   "The model's name in the server (default: the only --adapter behind --, else the first)");
  chat->add_option("--system", flags->system, "The system prompt");
  for (const std::string_view name : serve::ParameterNames()) {
    std::string flag = "--" + std::string(name);
    std::ranges::replace(flag, '_', '-');
    chat->add_option_function<std::string>(
        flag, [flags, name](const std::string& value) { flags->parameters.emplace_back(name, value); },
        fmt::format("{} of the requests (default: the server's)", name));
  }
  chat->add_option("--stop", flags->stop, "End answers before this text (repeatable)")->allow_extra_args(false);
  chat->add_flag("--plain", flags->plain, "Send plain text, for models without a chat template");
  chat->add_option("--load", flags->load, "Go on with a conversation of /save, or of the chat page");
  chat->add_option("--api-key-file", flags->key_file, "A file with a key of the server, one a line");
}

}  // namespace millrace::cli
