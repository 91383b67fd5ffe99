#include "apps/millrace/jobs/webhook.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <utility>

#include "millrace/base/files/files.h"
#include "millrace/base/text.h"

namespace millrace::cli {
namespace {

constexpr std::size_t kQueued = 64;                      // a job that fails more often while a server is away
constexpr std::uint64_t kMaxFile = 64 * kKiB;            // far above any URL
constexpr auto kPostPatience = std::chrono::seconds(5);  // for one request
constexpr int kTries = 3;                                // so a note takes a quarter of a minute at most
constexpr std::array<std::string_view, 6> kEvents = {"start", "failure", "straggler", "done", "failed", "interrupted"};

}  // namespace

Result<std::unique_ptr<Webhook>> Webhook::Open(const jobs::Spec& spec, const std::string& ca_bundle, Logger log) {
  std::string url = spec.log.webhook;
  if (!spec.log.webhook_file.empty()) {
    const std::string text = MR_TRY(ReadFile(spec.log.webhook_file, kMaxFile));
    url = Trim(std::string_view(text).substr(0, text.find('\n')));
    if (!jobs::IsWebhookUrl(url)) {
      return Fail(Code::kInvalidArgument, "log.webhook_file: the first line of {} is no URL of http:// or https://",
                  spec.log.webhook_file);
    }
  }
  if (url.empty()) return std::unique_ptr<Webhook>();
  return std::unique_ptr<Webhook>(new Webhook(std::move(url), spec.name, ca_bundle, std::move(log)));
}

Webhook::Webhook(std::string url, std::string job, const std::string& ca_bundle, Logger log)
    : url_(std::move(url)),
      job_(std::move(job)),
      log_(std::move(log)),
      client_({.max_connections = 1, .loops = 1, .ca_bundle = ca_bundle}),
      queue_(kQueued) {
  thread_.Spawn("webhook", [this](std::stop_token) {
    while (auto body = queue_.Pop()) Post(*body);
  });
}

Webhook::~Webhook() {
  queue_.Close();
  thread_.Join();
}

void Webhook::PostEvent(const jobs::JobEvent& event) {
  const std::string what = event.object.value("event", "");
  if (std::ranges::find(kEvents, what) == kEvents.end()) return;
  Json body = {{"job", job_}};
  body.update(event.object);
  body.erase("log");  // lines of a rank may hold what is not for a webhook
  body["text"] = fmt::format("job {}: {}", job_, event.sentence.substr(0, event.sentence.find('\n')));
  std::string text = DumpJson(body);
  (void)queue_.TryPush(text);  // what is dropped is in events.jsonl
}

void Webhook::Post(const std::string& body) {
  std::string why;
  // A server that was away for one note is not given three tries for each further one: the job's end would wait.
  for (int tries = failed_ ? 1 : kTries; tries > 0; --tries) {
    http::Request request{.method = "POST", .url = url_};
    request.headers.Set("Content-Type", "application/json");
    request.body = AsBytes(body);
    const auto response =
        client_.Send(std::move(request), {}, {.deadline = Deadline::After(SystemClock(), kPostPatience)});
    if (response && response->status < 300) return;
    why = response ? fmt::format("it answers {}", response->status) : std::string("it cannot be reached");
    if (response && response->status < 500) break;
  }
  if (!std::exchange(failed_, true)) log_.Warning("the webhook did not take a note; the job goes on", {{"why", why}});
}

}  // namespace millrace::cli
