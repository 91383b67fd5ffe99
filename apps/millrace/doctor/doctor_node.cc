// Whether this machine is fit for ranks.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>

#include "apps/millrace/cli/engine_program.h"
#include "apps/millrace/doctor/doctor.h"
#include "millrace/base/clock.h"
#include "millrace/base/files/files.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/memory_budget.h"
#include "millrace/jobs/health/node_checks.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/object/s3/credentials/settings.h"
#include "millrace/transfer/stream/ranged_reader.h"

namespace millrace::cli {
namespace {

using Level = Finding::Level;

/// How much of an object is read. A guess: a second of 10 Gb/s would be 1.2 GB, and a slow link should not take long.
constexpr std::uint64_t kMaxRead = 256 * kMiB, kLeastRead = 1 * kMiB;
constexpr Duration kReadingTime = std::chrono::seconds(5);
constexpr int kFirstBytes = 5, kPasses = 3;  // the fastest of them was not delayed by other work
constexpr std::uint64_t kReadingBudget = 128 * kMiB;

/// Returns the largest of the first objects below the URL; nothing if there is none.
Result<std::optional<object::ObjectInfo>> LargestObject(const object::Location& location, const object::Call& call) {
  const auto page = MR_TRY(object::List(*location.store, {.prefix = location.key, .max_keys = 1000}, call));
  const auto largest = std::ranges::max_element(page.objects, {}, &object::ObjectInfo::size);
  if (largest == page.objects.end() || largest->size < kLeastRead) return std::optional<object::ObjectInfo>();
  return std::optional(*largest);
}

Result<Finding> MeasureReading(const Context& context, const std::string& url) {
  const auto connection = MR_TRY(context.Connect());
  const object::Location location = MR_TRY(object::Locate(*connection, url));
  const object::Call call{.stop = context.stop, .deadline = Deadline::After(SystemClock(), 4 * kReadingTime)};
  const auto object = MR_TRY(LargestObject(location, call));
  if (!object) {
    return Finding{Level::kOk, "store", fmt::format("{}: not measured, no object there has 1 MiB", url), ""};
  }
  Duration fastest = Duration::max();
  Buffer byte(1);
  for (int i = 0; i < kFirstBytes; ++i) {
    const TimePoint begun = SystemClock().Now();
    MR_TRY(transfer::ReadInto(*location.store, *object, 0, byte.span(), 1, kMiB, call));
    fastest = std::min(fastest, SystemClock().Now() - begun);
  }
  MemoryBudget budget(kReadingBudget);
  const std::uint64_t bytes = std::min(object->size, kMaxRead);
  double rate = 0;
  const TimePoint first = SystemClock().Now();
  for (int pass = 0; pass < kPasses && SystemClock().Now() - first < kReadingTime; ++pass) {
    transfer::RangedReader reader(*location.store, budget, *object,
                                  {.range = object::ByteRange{0, bytes}, .in_order = false});
    const TimePoint begun = SystemClock().Now();
    std::uint64_t read = 0;
    for (;;) {
      const ByteSpan some = MR_TRY(reader.Next(call));
      read += some.size();
      if (some.empty() || SystemClock().Now() - begun > kReadingTime) break;
    }
    rate = std::max(rate, static_cast<double>(read) / std::max(SecondsOf(SystemClock().Now() - begun), 1e-9));
  }
  return Finding{.level = Level::kOk,
                 .check = "store",
                 .what = fmt::format("{}: {:.0f} MB/s ({} of {}), first byte after {}", url, rate / 1e6,
                                     FormatBytes(bytes), object->key, FormatDuration(fastest)),
                 .speed = rate / 1e6};
}

/// Measures how fast the store of a URL is read.
Finding CheckReading(const Context& context, const std::string& url) {
  auto measured = MeasureReading(context, url);
  if (measured) return *std::move(measured);
  return {Level::kFail, "store", fmt::format("{}: {}", url, measured.error().ToString()),
          "millrace doctor URL looks for the cause"};
}

/// Has millrace-train compare the findings with those of the other ranks.
Result<ComparedNodes> CompareNodes(const Context& context, const Json& findings) {
  const Json answer = MR_TRY(AskEngine(context, {"nodes", "--findings", DumpJson(findings)}));
  ComparedNodes compared;
  compared.rank = static_cast<int>(MR_TRY(JsonInt(answer, "rank")));
  const Json* nodes = JsonFind(answer, "nodes");
  if (nodes == nullptr || nodes->empty()) return Fail(Code::kInternal, "millrace-train nodes told of no machine");
  for (const Json& node : *nodes) {
    Findings findings;
    if (const Json* list = JsonFind(node, "findings")) {
      for (const Json& finding : *list) findings.push_back(MR_TRY(jobs::FindingFromJson(finding)));
    }
    compared.findings.emplace_back(MR_TRY(JsonString(node, "node")), std::move(findings));
  }
  return compared;
}

}  // namespace

std::string StoreEndpointUrl(const Context& context, const std::vector<std::string>& urls) {
  const auto environment = object::s3::Environment::System();
  const auto profiles = object::s3::Profiles::Load(environment);
  if (!profiles) return "";
  const auto settings = object::s3::Settings::Resolve(context.globals.connect, *profiles, environment);
  if (!settings) return "";
  const bool s3 = std::ranges::any_of(urls, [](const std::string& text) {
    const auto url = object::ParseUrl(text);
    return url && url->scheme == object::Url::Scheme::kS3;
  });
  return s3 || !settings->aws ? settings->AddressOf("", "", settings->region).Url("") : "";
}

Findings CheckThisNode(const Context& context, const RequiredFeatures& needs) {
  const jobs::HealthOptions options{.store = StoreEndpointUrl(context, needs.urls),
                                    .ca_bundle = context.globals.connect.ca_bundle};
  Findings findings = jobs::CheckNode(options, {}, SystemClock(), context.stop);
  for (const std::string& url : needs.urls) findings.push_back(CheckReading(context, url));
  return findings;
}

ComparedNodes CompareWithRanks(const Context& context, Findings findings) {
  Json list = Json::array();
  for (const Finding& finding : findings) list.push_back(jobs::ToJson(finding));
  auto compared = CompareNodes(context, list);
  if (compared) return *std::move(compared);
  const bool no_engine = compared.error().code() == Code::kUnsupported;
  findings.push_back({Level::kFail, "links", fmt::format("not measured: {}", compared.error().message()),
                      no_engine ? "install the whole package, with the engine"
                                : "start it as every rank of a job: run.command: [millrace, doctor, --node, --links]"});
  ComparedNodes alone;
  alone.findings.emplace_back("", std::move(findings));
  return alone;
}

}  // namespace millrace::cli
