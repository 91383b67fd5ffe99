#include "millrace/jobs/launchers/ssh.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "millrace/base/text.h"

namespace millrace::jobs {
namespace {

/// ssh's exit status for failures of its own.
constexpr int kSshFailed = 255;
/// Exit statuses of a shell that could not run the program, or did not find it.
constexpr int kNotExecutable = 126, kNoProgram = 127;

/// Quotes for any login shell.
std::string Quoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool IsLoopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

/// Returns the host name that ssh would connect to.
Result<std::string> AddressOf(const std::string& host, const SshAccess& access) {
  std::vector<std::string> argv = {"ssh", "-T", "-G"};
  argv.insert(argv.end(), access.options.begin(), access.options.end());
  argv.insert(argv.end(), {"--", host});
  const auto ran = Subprocess::Run({.argv = std::move(argv)});
  if (!ran && ran.error().code() == Code::kNotFound) {
    return Fail(Code::kNotFound, "ssh is not in PATH: the launcher ssh needs OpenSSH's client on this machine");
  }
  if (!ran) return Fail(ran.error());
  if (!ran->state.ok()) {
    return Fail(Code::kInvalidArgument, "ssh -G {} ended with {}: check run.ssh_options and ~/.ssh/config", host,
                ran->state.ToString());
  }
  for (std::string_view line : Split(ran->stdout_text, '\n')) {
    constexpr std::string_view kKey = "hostname ";
    if (line.starts_with(kKey)) return std::string(line.substr(kKey.size()));
  }
  return host.substr(host.find('@') + 1);
}

bool Says(std::string_view words, std::string_view what) { return words.find(what) != std::string_view::npos; }

}  // namespace

std::vector<std::string> SshCommand(const std::string& host, const SshAccess& access) {
  std::vector<std::string> command = {"ssh"};
  command.insert(command.end(), access.options.begin(), access.options.end());
  // A connection of its own: a shared one would end with whichever session opened it. 5 s and three missed answers: ssh
  // notices a dead network before RemoteLauncher::Options::silence is over.
  command.insert(command.end(), {"-T", "-x", "-oBatchMode=yes", "-oConnectTimeout=15", "-oServerAliveInterval=5",
                                 "-oServerAliveCountMax=3", "-oControlMaster=no", "-oControlPath=none", "--", host,
                                 fmt::format("exec {} job agent", Quoted(access.millrace))});
  return command;
}

Result<std::vector<RemoteNode>> SshNodes(const std::vector<std::string>& hosts, const SshAccess& access) {
  std::vector<RemoteNode> nodes;
  for (const std::string& host : hosts) {
    std::string address = MR_TRY(AddressOf(host, access));
    nodes.push_back({.name = host, .address = std::move(address), .command = SshCommand(host, access)});
  }
  if (nodes.empty() || !IsLoopback(nodes.front().address)) return nodes;
  const auto other = std::ranges::find_if(nodes, [](const RemoteNode& node) { return !IsLoopback(node.address); });
  if (other == nodes.end()) return nodes;
  return Fail(Code::kInvalidArgument,
              "the first host, {}, is at {}: {} could not reach it there; name it as the other hosts know it",
              nodes.front().name, nodes.front().address, other->name);
}

Error ExplainSshEnd(const RemoteNode& node, const ExitState& state, std::string_view words, const SshAccess& access) {
  const std::string& host = node.name;
  const std::string last = LastErrorLines(words);
  const auto fail = [&](Code code, std::string what) { return Error(code, fmt::format("node {}: {}", host, what)); };
  if (state.exit_code == kNoProgram || state.exit_code == kNotExecutable) {
    return fail(Code::kNotFound, fmt::format("{} cannot be run there ({}): install Millrace, or set run.millrace_path",
                                             access.millrace, last));
  }
  if (state.exit_code == kSshFailed) {
    if (Says(words, "IDENTIFICATION HAS CHANGED")) {
      return fail(Code::kPermissionDenied,
                  fmt::format("its host key is not the one that ssh knows. If the machine was set up anew, remove the "
                              "old key: ssh-keygen -R {}",
                              host));
    }
    if (Says(words, "Host key verification failed") || Says(words, "No matching host key") ||
        Says(words, "host key is known for")) {
      return fail(Code::kPermissionDenied,
                  fmt::format("ssh does not know its host key: log in once with `ssh {}`, or add the key to "
                              "~/.ssh/known_hosts",
                              host));
    }
    if (Says(words, "Permission denied (") || Says(words, "Too many authentication failures")) {
      return fail(Code::kPermissionDenied,
                  fmt::format("login refused. ssh must log in without a password: copy your key there with "
                              "`ssh-copy-id {}`, or unlock it with ssh-add ({})",
                              host, last));
    }
    if (Says(words, "Bad configuration option") || Says(words, "Can't open user config file") ||
        Says(words, "usage: ssh") || Says(words, "unknown option") || Says(words, "Bad owner or permissions")) {
      return fail(Code::kInvalidArgument, fmt::format("check run.ssh_options and ~/.ssh/config: {}", last));
    }
  }
  return fail(Code::kUnavailable,
              fmt::format("lost, ssh ended with {}{}{}", state.ToString(), last.empty() ? "" : ": ", last));
}

std::map<std::string, std::string> EnvironmentOfRanks() {
  constexpr std::array<std::string_view, 6> kPrefixes = {"AWS_", "HF_", "NCCL_", "GLOO_", "TP_SOCKET_", "FI_"};
  constexpr std::array<std::string_view, 8> kNames = {"http_proxy", "https_proxy", "all_proxy", "no_proxy",
                                                      "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"};
  std::map<std::string, std::string> found;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    const bool wanted =
        std::ranges::find(kNames, name) != kNames.end() ||
        std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
    if (wanted) found.emplace(name, text.substr(equals + 1));
  }
  return found;
}

}  // namespace millrace::jobs
