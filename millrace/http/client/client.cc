#include "millrace/http/client/client.h"

#include <algorithm>
#include <initializer_list>

#include "millrace/base/process/cores.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/client/event_loop.h"

namespace millrace::http {
namespace {

int LoopsFor(const Client::Options& options) {
  // Guesses. A loop with fewer connections than kLeastConnections would mostly idle. The cores beyond kMax are left
  // to those who use the bytes.
  constexpr int kMax = 4, kLeastConnections = 8;
  if (options.max_bytes_per_second > 0) return 1;
  if (options.loops > 0) return std::min(options.loops, options.max_connections);
  return std::clamp(std::min(UsableCores(), options.max_connections / kLeastConnections), 1, kMax);
}

/// The share of loop `index` when `count` loops divide `total`.
int Share(int total, int index, int count) { return std::max(1, (total + count - 1 - index) / count); }

}  // namespace

Proxies Proxies::FromEnvironment(const std::function<std::optional<std::string>(const char*)>& getenv) {
  auto first = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (auto value = getenv(name)) return *value;
    }
    return std::string();
  };
  return {.http = first({"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"}),
          .https = first({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"}),
          .except = first({"no_proxy", "NO_PROXY"})};
}

Client::Client(Options options) {
  const int count = LoopsFor(options);
  for (int i = 0; i < count; ++i) {
    Options own = options;
    own.max_connections = Share(options.max_connections, i, count);
    own.max_connections_per_host = Share(options.max_connections_per_host, i, count);
    loops_.push_back(std::make_unique<EventLoop>(std::move(own)));
  }
}
Client::~Client() = default;

/// The first of the loops with the fewest requests in flight, so that requests one after the other use one connection.
Client::EventLoop& Client::Idlest() const {
  return **std::ranges::min_element(loops_, {},
                                    [](const auto& loop) { return loop->in_flight() + loop->is_own_thread(); });
}

void Client::Send(Request request, BodyTarget target, Call call, Completion done) {
  Idlest().Send(std::move(request), target, std::move(call), std::move(done));
}

Result<Response> Client::Send(Request request, BodyTarget target, Call call) {
  Mutex mutex;
  CondVar ready;
  std::optional<Result<Response>> result;
  Send(std::move(request), target, std::move(call), [&](Result<Response> response) {
    MutexLock lock(mutex);
    result.emplace(std::move(response));
    ready.NotifyOne();
  });
  MutexLock lock(mutex);
  while (!result) ready.Wait(mutex);
  return *std::move(result);
}

void Client::LimitActive(int most) {
  const int count = static_cast<int>(loops_.size());
  for (int i = 0; i < count; ++i) loops_[static_cast<std::size_t>(i)]->LimitActive(Share(most, i, count));
}

void Client::LimitUploads(int most) {
  const int count = static_cast<int>(loops_.size());
  for (int i = 0; i < count; ++i) loops_[static_cast<std::size_t>(i)]->LimitUploads(Share(most, i, count));
}

Client::Stats Client::stats() const {
  Stats sum;
  for (const auto& loop : loops_) {
    const Stats of = loop->stats();
    sum.requests += of.requests;
    sum.connections_opened += of.connections_opened;
    sum.bytes_sent += of.bytes_sent;
    sum.bytes_received += of.bytes_received;
    sum.hedged += of.hedged;
    sum.in_flight += of.in_flight;
    sum.most_active += of.most_active;
  }
  return sum;
}

}  // namespace millrace::http
