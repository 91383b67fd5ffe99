// Kills `millrace s3d` while clients write, starts it again, and looks for every object that was acknowledged.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <latch>
#include <map>
#include <thread>

#include "millrace/base/files/files.h"
#include "millrace/base/hash/random.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"
#include "millrace/http/client/client.h"

namespace millrace {
namespace {

constexpr int kWriters = 4, kKeysPerWriter = 5, kRounds = 6;

/// Version `version` of a key: nothing (deleted) for every sixth, else bytes that belong to this version alone.
std::string ContentOf(std::string_view key, std::uint64_t version) {
  if (version % 6 == 0) return "";
  std::string content = fmt::format("{} {} ", key, version);
  Random random(Mix64(version) ^ std::hash<std::string_view>()(key));
  const std::uint64_t sizes[] = {10, 3000, 60'000, 70'000, 400'000};
  content.resize(content.size() + sizes[random.Below(5)]);
  for (std::size_t i = content.size() & ~7ull; i-- > 40;) content[i] = static_cast<char>(random.Next());
  return content;
}

class Endpoint {
 public:
  explicit Endpoint(const std::filesystem::path& folder) {
    std::filesystem::remove(folder / "port");
    auto started = Subprocess::Start(
        {.argv = {fmt::format("{}/millrace", std::getenv("MILLRACE_BIN")), "s3d", "--root", (folder / "root").string(),
                  "--anonymous", "--port-file", (folder / "port").string()},
         .stdout_file = folder / "out"});
    EXPECT_TRUE(started) << started.error().ToString();
    process_.emplace(std::move(*started));
    while (!std::filesystem::exists(folder / "port")) {
      if (process_->Poll()) break;
      SystemClock().SleepFor(std::chrono::milliseconds(2));
    }
    auto port = ReadFile(folder / "port");
    EXPECT_TRUE(port) << "millrace s3d did not start";
    if (port) url_ = fmt::format("http://127.0.0.1:{}/bucket", Trim(*port));
  }
  void Kill() {
    process_->Signal(SIGKILL);
    process_->Wait();
  }
  const std::string& url() const { return url_; }

 private:
  std::optional<Subprocess> process_;
  std::string url_;
};

/// What a client knows of one key.
struct Known {
  std::uint64_t acknowledged = 0, attempted = 0;
};

/// Writes ever newer versions of its keys until the endpoint is gone.
void Write(http::Client& client, const std::string& url, std::map<std::string, Known>& keys,
           std::atomic<int>& acknowledged) {
  for (;;) {
    for (auto& [key, known] : keys) {
      std::uint64_t version = ++known.attempted;
      std::string content = ContentOf(key, version);
      http::Request request{
          .method = content.empty() ? "DELETE" : "PUT", .url = url + "/" + key, .body = AsBytes(content)};
      auto answer = client.Send(std::move(request));
      if (!answer || answer->status >= 300) return;
      known.acknowledged = version;
      ++acknowledged;
      acknowledged.notify_all();
    }
  }
}

/// The version of `key` that the endpoint has must be the acknowledged one, or the one that was under way.
void Check(http::Client& client, const std::string& url, const std::string& key, Known& known) {
  auto got = client.Send({.url = url + "/" + key});
  ASSERT_TRUE(got) << got.error().ToString();
  ASSERT_TRUE(got->status == 200 || got->status == 404) << got->status;
  std::string content = got->status == 200 ? got->body : "";
  for (std::uint64_t version = known.acknowledged; version <= known.attempted; ++version) {
    if (content != ContentOf(key, version)) continue;
    known = {version, version};
    return;
  }
  FAIL() << key << ": acknowledged version " << known.acknowledged << ", attempted " << known.attempted << ", found "
         << content.substr(0, 30) << " of " << content.size() << " bytes";
}

TEST(S3dCrash, EveryAcknowledgedObjectSurvivesKill) {
  TempDir folder = *TempDir::Create();
  Random random(17);
  std::vector<std::map<std::string, Known>> writers(kWriters);
  for (int w = 0; w < kWriters; ++w) {
    for (int k = 0; k < kKeysPerWriter; ++k) writers[w][fmt::format("w{}/k{}", w, k)];
  }
  for (int round = 0; round < kRounds; ++round) {
    Endpoint endpoint(folder.path());
    http::Client client({});
    if (round == 0) {
      ASSERT_EQ(client.Send({.method = "PUT", .url = endpoint.url()})->status, 200);
    }
    for (auto& keys : writers) {
      for (auto& [key, known] : keys) Check(client, endpoint.url(), key, known);
    }
    if (HasFatalFailure()) return;
    std::atomic<int> acknowledged = 0;
    std::vector<std::thread> threads;
    for (auto& keys : writers) {
      threads.emplace_back([&] { Write(client, endpoint.url(), keys, acknowledged); });
    }
    const int enough = static_cast<int>(20 + random.Below(150));
    for (int count = 0; (count = acknowledged) < enough;) acknowledged.wait(count);
    endpoint.Kill();
    for (std::thread& thread : threads) thread.join();
  }
  Endpoint endpoint(folder.path());
  http::Client client({});
  for (auto& keys : writers) {
    for (auto& [key, known] : keys) Check(client, endpoint.url(), key, known);
  }
}

}  // namespace
}  // namespace millrace
