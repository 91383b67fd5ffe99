#include "millrace/checkpoint/local/peer_machines.h"

#include <fcntl.h>
#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/constant_time.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/checkpoint/format/checkpoint_keys.h"
#include "millrace/checkpoint/save/decide.h"
#include "millrace/checkpoint/save/local_folder.h"
#include "millrace/checkpoint/save/result_message.h"
#include "millrace/object/blocking.h"
#include "millrace/object/local/paths.h"

namespace millrace::checkpoint {
namespace {

/// Random bytes: 128 bits make tokens unique, 256 bits cannot be guessed.
constexpr int kTokenBytes = 16, kSecretBytes = 32;
/// The buffer for a file that another machine sends. 8 MiB: the part size of uploads. Larger if the file would have too
/// many parts, up to a bound on memory (a guess).
constexpr std::uint64_t kPartBytes = 8 * kMiB, kMaxPartBytes = 1 * kGiB;
/// A request to another machine is repeated for about 15 seconds, for example if that machine has no free connection.
/// A guess.
constexpr int kAttempts = 12;
constexpr Duration kFirstPause = std::chrono::milliseconds(100), kLongestPause = std::chrono::seconds(2);
/// Connections of a rank to each other machine. A guess; half of kReaders.
constexpr int kConnections = 4;
/// All ranks of a large run may connect at once. An idle connection is closed soon, to make room for others. A guess.
constexpr int kMaxConnections = 2048;
constexpr Duration kIdle = std::chrono::seconds(1);
constexpr char kFrom[] = "from", kBytes[] = "bytes";

/// Returns the folder's token. The first rank that asks creates it.
Result<std::string> MachineToken(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return Fail(ErrnoError(error.value(), fmt::format("creating {}", folder.string())));
  const std::filesystem::path file = folder / kMachineToken;
  if (auto there = ReadFile(file, kMiB)) return *std::move(there);
  const std::filesystem::path made = folder / fmt::format("{}-{}", kMachineToken, SecureHex(8));
  MR_TRY(WriteFileAtomic(made, AsBytes(SecureHex(kTokenBytes))));
  const bool linked = ::link(made.c_str(), file.c_str()) == 0 || errno == EEXIST;
  const int why = errno;
  ::unlink(made.c_str());
  if (!linked) return Fail(ErrnoError(why, fmt::format("creating {}", file.string())));
  return ReadFile(file, kMiB);
}

/// Returns the address in digits; an IPv6 address is in brackets.
Result<std::string> NumericAddress(const sockaddr* address, socklen_t length) {
  char name[NI_MAXHOST];
  if (const int code = ::getnameinfo(address, length, name, sizeof name, nullptr, 0, NI_NUMERICHOST); code != 0)
    return Fail(Code::kInternal, "an address without a number: {}", ::gai_strerror(code));
  return address->sa_family == AF_INET6 ? fmt::format("[{}]", name) : std::string(name);
}

bool IsLoopback(std::string_view numeric) { return numeric.starts_with("127.") || numeric == "[::1]"; }

/// The two ends of the route from this machine to LocalTierOptions::meeting_point.
struct Route {
  std::string from;  ///< this machine's address
  std::string to;    ///< the meeting point's address
};
Result<Route> RouteToward(const std::string& host) {
  addrinfo hints{.ai_socktype = SOCK_DGRAM}, *found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), "9", &hints, &found); code != 0) {
    return Fail(Code::kInvalidArgument,
                "the address that ranks meet at, {}: {}; expected the name or address of a machine", host,
                ::gai_strerror(code));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    // Connecting a datagram socket sends no packet. It only chooses the route.
    const UniqueFd probe(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage here{};
    socklen_t length = sizeof here;
    auto* generic = reinterpret_cast<sockaddr*>(&here);
    if (!probe || ::connect(probe.get(), one->ai_addr, one->ai_addrlen) != 0 ||
        ::getsockname(probe.get(), generic, &length) != 0) {
      continue;
    }
    Route route;
    route.from = MR_TRY(NumericAddress(generic, length));
    route.to = MR_TRY(NumericAddress(one->ai_addr, one->ai_addrlen));
    return route;
  }
  return Fail(Code::kUnavailable, "no route to the address at which ranks meet, {}", host);
}

/// Serves one folder: GET /NAME?from=A&bytes=N and PUT /NAME.
class FolderServer {
 public:
  FolderServer(object::Location folder, object::RootFolder root, std::string authorization)
      : folder_(std::move(folder)), root_(std::move(root)), authorization_(std::move(authorization)) {}

  void operator()(http::ServerRequest& request, http::ServerResponse& response) const {
    const Status done = Handle(request, response);
    if (done || response.started()) return;
    const std::string text = done.error().ToString();
    std::ignore = response.Send(ToHttpStatus(done.error().code()), {}, AsBytes(text));
  }

 private:
  Status Handle(http::ServerRequest& request, http::ServerResponse& response) const {
    if (!ConstantTimeEqual(request.headers().Get("Authorization"), authorization_))
      return Fail(Code::kPermissionDenied, "not one of this run's ranks; only they may read and write here");
    const std::string name = MR_TRY(PercentDecode(request.path().substr(1)));
    if (!CheckpointKeys("").ParseFileKey(name) && !CheckpointKeys("").StepOfManifest(name))
      return Fail(Code::kInvalidArgument, "{} is not a file of a checkpoint; only such files are served", name);
    if (request.method() == "GET") return Read(name, request.query(), response);
    if (request.method() == "PUT") return Write(name, request, response);
    return Fail(Code::kUnsupported, "only GET and PUT");
  }

  Status Read(const std::string& name, std::string_view query, http::ServerResponse& response) const {
    std::uint64_t from = 0, bytes = 0;
    for (const auto& [key, value] : MR_TRY(http::ParseQuery(query))) {
      std::uint64_t& number = key == kFrom ? from : bytes;
      if (std::from_chars(value.data(), value.data() + value.size(), number).ptr != value.data() + value.size())
        return Fail(Code::kInvalidArgument, "{} is not a number; expected a whole one", value);
    }
    const UniqueFd file = MR_TRY(root_.TryOpen(MR_TRY(object::PathOfKey(name)).Full(), O_RDONLY | O_NONBLOCK));
    struct stat status{};
    if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
      return Fail(Code::kNotFound, "no file {}", name);
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (from > size || bytes > size - from)
      return Fail(Code::kInvalidArgument, "{} has {} bytes, not {} from {} on", name, size, bytes, from);
    MR_TRY(response.Start(200, {}, bytes));
    MR_TRY(response.WriteFile(file.get(), from, bytes));
    return response.Finish();
  }

  Status Write(const std::string& name, http::ServerRequest& request, http::ServerResponse& response) const {
    const std::string key = folder_.key + "/" + name;
    const auto parts_at_most = static_cast<std::uint64_t>(folder_.store->limits().max_parts);
    const std::uint64_t size = request.content_length().value_or(0);
    if (size == 0) return Fail(Code::kInvalidArgument, "{} has no length; a Content-Length is required", name);
    // A multipart upload: if the process is killed, the collector finds the unfinished upload and aborts it.
    const std::string upload = MR_TRY(object::CreateMultipart(*folder_.store, key));
    auto written = [&]() -> Status {
      std::vector<object::PartInfo> parts;
      Buffer part(std::clamp(size / parts_at_most + 1, std::min(kPartBytes, size), kMaxPartBytes));
      while (const std::size_t got = MR_TRY(Fill(request, part.span()))) {
        const int number = static_cast<int>(parts.size()) + 1;
        parts.push_back(MR_TRY(object::UploadPart(*folder_.store, key, upload, number, part.span().first(got))));
      }
      MR_TRY(object::CompleteMultipart(*folder_.store, key, upload, std::move(parts)));
      return {};
    }();
    if (!written) std::ignore = object::AbortMultipart(*folder_.store, key, upload);
    if (!written) return written;
    return response.Send(200, {}, {});
  }
  /// Reads the body until `into` is full or the body ends.
  static Result<std::size_t> Fill(http::ServerRequest& request, MutableByteSpan into) {
    std::size_t filled = 0;
    while (filled < into.size()) {
      const std::size_t got = MR_TRY(request.ReadBody(into.subspan(filled)));
      if (got == 0) break;
      filled += got;
    }
    return filled;
  }

  const object::Location folder_;
  const object::RootFolder root_;
  const std::string authorization_;
};

/// Returns the machine of each rank, numbered in the order of their first ranks. Empty if all ranks share one machine
/// or a rank has no token.
std::vector<int> NumberMachines(const std::vector<std::string>& tokens) {
  std::vector<std::string> machines;
  std::vector<int> numbers;
  for (const std::string& token : tokens) {
    if (token.empty()) return {};
    const auto known = std::ranges::find(machines, token);
    numbers.push_back(static_cast<int>(known - machines.begin()));
    if (known == machines.end()) machines.push_back(token);
  }
  return machines.size() > 1 ? numbers : std::vector<int>();
}

}  // namespace

Result<std::shared_ptr<PeerMachines>> PeerMachines::Connect(RankExchange& group, const LocalTierOptions& tier,
                                                            std::string_view url, Clock& clock) {
  if (tier.copies < 2) return nullptr;
  const auto own = LocateLocal(tier, url);
  const Result<std::string> token = own ? MachineToken(tier.path) : Fail(own.error());
  auto number = [](const std::vector<std::string>& tokens) -> Result<Json> {
    return Json{{"machines", NumberMachines(tokens)}, {"secret", SecureHex(kSecretBytes)}};
  };
  const Json agreed = MR_TRY(DecideOnRank0(group, token.value_or(""), number));
  const auto numbers = agreed.at("machines").get<std::vector<int>>();
  if (numbers.empty()) return nullptr;
  const auto rank = static_cast<std::size_t>(group.rank());
  std::shared_ptr<PeerMachines> made(new PeerMachines(numbers[rank], tier.copies, clock));
  made->local_size_ = static_cast<int>(std::ranges::count(numbers, made->index_));
  made->local_rank_ = static_cast<int>(std::count(numbers.begin(), numbers.begin() + group.rank(), made->index_));
  made->authorization_ = "Bearer " + agreed.at("secret").get<std::string>();

  const Result<Route> route = RouteToward(tier.meeting_point);
  // The machine at the meeting point may resolve its own name to loopback (127.0.1.1). The other machines know its
  // network address. It listens on that address only.
  auto reached_at = [](const std::vector<std::string>& known) -> Result<Json> {
    const auto real = std::ranges::find_if(known, [](const auto& one) { return !one.empty() && !IsLoopback(one); });
    return Json(real == known.end() ? "" : *real);
  };
  const Json meeting_address = MR_TRY(DecideOnRank0(group, route ? route->to : "", reached_at));

  auto serve = [&]() -> Result<std::string> {
    if (made->local_rank_ != 0) return "";
    std::string address = MR_TRY(route).from;
    if (IsLoopback(address) && meeting_address != "") address = meeting_address.get<std::string>();
    object::RootFolder root = MR_TRY(object::RootFolder::Open("/" + own->key, true));
    auto serving = std::make_shared<FolderServer>(*own, std::move(root), made->authorization_);
    made->server_ = MR_TRY(http::Server::Start(
        {.listen = address + ":0", .max_connections = kMaxConnections, .idle_timeout = kIdle},
        [serving](http::ServerRequest& request, http::ServerResponse& response) { (*serving)(request, response); }));
    return fmt::format("{}:{}", address, made->server_->port());
  };
  const Result<std::string> mine = serve();
  auto collect = [](const std::vector<std::string>& said) -> Result<Json> {
    Json list = Json::array();
    for (const std::string& one : said) {
      const Result<std::string> endpoint = DecodeResult(one);
      if (!endpoint) return Fail(Code::kUnavailable, "{}", endpoint.error().ToString());
      if (!endpoint->empty()) list.push_back(*endpoint);
    }
    return list;
  };
  const Json endpoints = MR_TRY(DecideOnRank0(group, EncodeResult(mine), collect));
  made->endpoints_ = endpoints.get<std::vector<std::string>>();
  return made;
}

PeerMachines::PeerMachines(int index, int copies, Clock& clock)
    : index_(index), copies_(copies), clock_(clock), client_({.max_connections_per_host = kConnections, .loops = 1}) {}

PeerMachines::~PeerMachines() {
  if (server_) server_->Stop(Duration::zero());
}

std::string PeerMachines::UrlOf(int machine, const std::string& name) const {
  return fmt::format("http://{}/{}", endpoints_[static_cast<std::size_t>(machine)], PercentEncode(name, true));
}

Result<http::Response> PeerMachines::SendWithRetries(const http::Request& request, MutableByteSpan into,
                                                     const object::Call& call) {
  Duration pause = kFirstPause;
  for (int attempt = 1;; ++attempt, pause = std::min(2 * pause, kLongestPause)) {
    auto answer = client_.Send(request, {.into = into}, {call.stop, call.deadline});
    if (answer && answer->status == 200) return answer;
    // The body holds the error's text.
    Error error = answer ? Error(CodeFromHttpStatus(answer->status), fmt::format("{}: {}", request.url, answer->body))
                         : answer.error();
    const bool again = error.code() == Code::kUnavailable && attempt < kAttempts;
    if (!again || !clock_.SleepFor(pause, call.stop)) return Fail(std::move(error));
  }
}

Status PeerMachines::CopyToPeers(const std::string& name, ByteSpan bytes, const object::Call& call) {
  for (int next = 1; next < std::min(copies_, count()); ++next) {
    http::Request request{.method = "PUT", .url = UrlOf((index_ + next) % count(), name), .body = bytes};
    request.headers.Set("Authorization", authorization_);
    auto put = SendWithRetries(request, {}, call);
    if (!put) return Fail(put.error().Context("copying to another machine"));
  }
  return {};
}

Status PeerMachines::Fetch(int machine, const std::string& name, std::uint64_t offset, MutableByteSpan into,
                           const object::Call& call) {
  if (into.empty()) return {};
  http::Request request{.url = fmt::format("{}?{}={}&{}={}", UrlOf(machine, name), kFrom, offset, kBytes, into.size())};
  request.headers.Set("Authorization", authorization_);
  const auto answer = SendWithRetries(request, into, call);
  if (!answer) return Fail(answer.error().Context("reading from another machine"));
  if (answer->received != into.size())
    return Fail(Code::kCorrupt, "{}: {} bytes instead of {}", name, answer->received, into.size());
  return {};
}

}  // namespace millrace::checkpoint
