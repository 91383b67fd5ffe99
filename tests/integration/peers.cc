#include "tests/integration/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "millrace/base/text.h"
#include "millrace/http/client/client.h"

namespace millrace::peers {
namespace {

namespace fs = std::filesystem;

Result<std::string> FindProgram(std::string_view name) {
  std::string path = std::getenv("PATH") ? std::getenv("PATH") : "";
  if (const char* peers = std::getenv("MILLRACE_PEERS")) path = std::string(peers) + "/bin:" + path;
  for (std::string_view folder : Split(path, ':')) {
    fs::path candidate = fs::path(folder) / name;
    if (access(candidate.c_str(), X_OK) == 0) return candidate.string();
  }
  return Fail(Code::kUnsupported, "there is no {} in $MILLRACE_PEERS/bin or PATH", name);
}

/// A port that was free a moment ago: these servers cannot be told to choose one and say which.
int FreePort() {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof address;
  bool good = bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
              getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0;
  return good ? ntohs(address.sin_port) : 0;
}

Status MakeCertificate(const fs::path& folder) {
  std::string openssl = MR_TRY(FindProgram("openssl"));
  auto made =
      MR_TRY(Subprocess::Run({.argv = {openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
                                       "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout",
                                       (folder / "private.key").string(), "-out", (folder / "public.crt").string()},
                              .stderr_file = folder / "log"}));
  if (made.state.ok()) return {};
  return Fail(Code::kIo, "openssl makes no certificate: {}", ReadFile(folder / "log").value_or(""));
}

}  // namespace

Result<std::unique_ptr<Server>> Server::Await(std::string name, TempDir folder, Subprocess process, std::string url) {
  http::Client client({.verify_tls = false});
  Deadline deadline = Deadline::After(SystemClock(), std::chrono::seconds(20));
  while (!deadline.Passed(SystemClock())) {
    // Without a signature: refused as soon as requests are served at all (health checks succeed before).
    auto response = client.Send({.url = url + "/"});
    if (response && response->status == 403) {
      return std::unique_ptr<Server>(new Server(std::move(folder), std::move(process), std::move(url)));
    }
    // Waiting for a process of someone else's: there is nothing to be notified by, but its end.
    if (process.Wait(std::chrono::milliseconds(50))) break;
  }
  return Fail(Code::kUnavailable, "{} does not start: {}", name, ReadFile(folder.path() / "log").value_or(""));
}

Result<std::unique_ptr<Server>> Server::StartMinio(Options options) {
  std::string program = MR_TRY(FindProgram("minio"));
  TempDir folder = MR_TRY(TempDir::Create());
  fs::path log = folder.path() / "log", certificates = folder.path() / "certs";
  fs::create_directory(certificates);
  if (options.tls) MR_TRY(MakeCertificate(certificates));
  std::string port = std::to_string(FreePort());
  std::string url = (options.tls ? "https://localhost:" : "http://localhost:") + port;
  Subprocess process =
      MR_TRY(Subprocess::Start({.argv = {program, "server", "--quiet", "--certs-dir", certificates.string(),
                                         "--address", "127.0.0.1:" + port, (folder.path() / "data").string()},
                                .env = {{"MINIO_ROOT_USER", options.access_key},
                                        {"MINIO_ROOT_PASSWORD", options.secret_key},
                                        {"MINIO_DOMAIN", "localhost"},
                                        {"MINIO_BROWSER", "off"},
                                        {"HOME", folder.path().string()}},
                                .stdout_file = log,
                                .stderr_file = log}));
  return Await("minio", std::move(folder), std::move(process), std::move(url));
}

Result<std::unique_ptr<Server>> Server::StartVersityGateway(Options options) {
  std::string program = MR_TRY(FindProgram("versitygw"));
  TempDir folder = MR_TRY(TempDir::Create());
  fs::path log = folder.path() / "log", data = folder.path() / "data";
  fs::create_directory(data);
  std::string port = std::to_string(FreePort());
  Subprocess process = MR_TRY(
      Subprocess::Start({.argv = {program, "--port", "127.0.0.1:" + port, "--quiet", "posix", data.string()},
                         .env = {{"ROOT_ACCESS_KEY", options.access_key}, {"ROOT_SECRET_KEY", options.secret_key}},
                         .stdout_file = log,
                         .stderr_file = log}));
  return Await("versitygw", std::move(folder), std::move(process), "http://localhost:" + port);
}

}  // namespace millrace::peers
