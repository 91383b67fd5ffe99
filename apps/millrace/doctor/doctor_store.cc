#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>

#include "apps/millrace/doctor/doctor.h"
#include "millrace/base/text.h"
#include "millrace/http/client/client.h"
#include "millrace/jobs/health/store_checks.h"
#include "millrace/object/blocking.h"
#include "millrace/object/open/open.h"
#include "millrace/object/s3/credentials/credentials.h"
#include "millrace/object/s3/credentials/settings.h"
#include "millrace/object/s3/requests/retry.h"
#include "millrace/object/support/conditions.h"

namespace millrace::cli {
namespace {

using Level = Finding::Level;
using object::s3::Credentials;
using object::s3::Environment;
using object::s3::Profiles;
using object::s3::Settings;

constexpr auto kPatience = std::chrono::seconds(5);

Result<http::Response> Send(const std::string& ca_bundle, http::Request request, http::Call call) {
  http::Client client({.timeouts = {.connect = kPatience, .first_byte = kPatience},
                       .ca_bundle = ca_bundle,
                       .proxies = http::Proxies::FromEnvironment(Environment::System().getenv)});
  return client.Send(std::move(request), {.max_collected = kMiB}, std::move(call));
}

struct FoundKeys {
  Finding finding;
  std::optional<Credentials> credentials;  ///< nothing: they could not be fetched, or a metadata service was not asked
};

/// Reports where credentials come from and whether they can be fetched; never prints them. Asks a metadata service only
/// if `needed`.
FoundKeys CheckCredentials(const Settings& settings, const Profiles& profiles, const object::ConnectOptions& options,
                           bool needed, std::stop_token stop) {
  Environment environment = Environment::System();
  environment.fetch = [&settings](http::Request request, http::Call call) {
    return Send(settings.ca_bundle, std::move(request), std::move(call));
  };
  const char* advice =
      "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile, or use --no-sign-request for public buckets";
  const Level missing = needed ? Level::kFail : Level::kWarn;
  auto source = object::s3::FindCredentials(settings, !options.profile.empty(), profiles, environment);
  if (!source) return {{missing, "credentials", source.error().ToString(), advice}, {}};
  std::string from = (*source)->Describe();
  if (!needed && !(*source)->fixed()) {
    return {
        {Level::kOk, "credentials", fmt::format("would come from {} (not asked: no s3:// URL was given)", from), ""},
        {}};
  }
  auto credentials = (*source)->Fetch(stop);
  if (!credentials) {
    return {{missing, "credentials", fmt::format("from {}: {}", from, credentials.error().ToString()), advice}, {}};
  }
  if (credentials->anonymous()) return {{Level::kOk, "credentials", "none: requests go out unsigned", ""}, {}};
  std::string until = credentials->expires ? ", valid until " + FormatIso8601(*credentials->expires) : "";
  return {{Level::kOk, "credentials", fmt::format("from {}{}", from, until), ""}, *credentials};
}

/// Returns what to do about a refused signed request, by S3's error code.
std::string AdviceOnRefusal(const object::s3::Refusal& refusal) {
  const std::string& code = refusal.s3_code;
  if (code == "SignatureDoesNotMatch")
    return "the secret key is not the access key's: set AWS_SECRET_ACCESS_KEY (or the profile's) again";
  if (code == "InvalidAccessKeyId")
    return "the endpoint does not know the access key: check AWS_ACCESS_KEY_ID, --profile and --endpoint-url";
  if (code == "AuthorizationHeaderMalformed") {
    return refusal.region.empty()
               ? "the endpoint has another region: check --region (or AWS_REGION)"
               : fmt::format("the endpoint's region is {}: --region {}", refusal.region, refusal.region);
  }
  if (code == "RequestTimeTooSkewed") return "set this machine's clock (chronyc, timedatectl)";
  if (code == "ExpiredToken" || code == "InvalidToken")
    return "sign in again, or unset AWS_SESSION_TOKEN if it belongs to other keys";
  return "";
}

/// Sends one signed request, ListBuckets, to see whether the endpoint accepts the keys. AccessDenied also means that
/// the endpoint knows them.
Finding CheckSignature(const Settings& settings, const Credentials& credentials, std::stop_token stop) {
  const Settings::Address address = settings.AddressOf("", "", settings.region);
  http::Request request{.method = "GET", .url = address.Url("")};
  const object::s3::Signer signer(settings.region, "s3");
  request.headers.Set("X-Amz-Content-Sha256", std::string(object::s3::kUnsignedPayload));
  signer.Sign({.method = request.method, .host = address.host, .path = address.path, .query = ""},
              object::s3::kUnsignedPayload, credentials, SystemClock().Wall(), request.headers);
  const auto response = Send(settings.ca_bundle, std::move(request),
                             {.stop = stop, .deadline = Deadline::After(SystemClock(), 2 * kPatience)});
  if (!response) return {Level::kFail, "signature", response.error().ToString(), ""};
  if (response->status == 200) return {Level::kOk, "signature", "the endpoint accepts the keys", ""};
  const object::s3::Refusal refusal = object::s3::Classify(*response, SystemClock().Wall());
  if (refusal.s3_code == "AccessDenied")
    return {Level::kOk, "signature", "the endpoint accepts the keys; they may not list buckets", ""};
  const std::string advice = AdviceOnRefusal(refusal);
  const Level level = advice.empty() ? Level::kWarn : Level::kFail;
  return {level, "signature", fmt::format("a signed request was refused: {}", refusal.message), advice};
}

/// Sends one unsigned request. Reports whether the endpoint answers, how fast, and whether the clocks agree.
Findings CheckEndpoint(const Settings& settings, std::stop_token stop) {
  const std::string url = settings.AddressOf("", "", settings.region).Url("");
  const TimePoint started = SystemClock().Now();
  auto response = Send(settings.ca_bundle, {.method = "HEAD", .url = url},
                       {.stop = stop, .deadline = Deadline::After(SystemClock(), 2 * kPatience)});
  if (!response) {
    return {{Level::kFail, "endpoint", fmt::format("{} does not answer: {}", url, response.error().ToString()),
             "check --endpoint-url (or AWS_ENDPOINT_URL), the network, HTTPS_PROXY and --ca-bundle"}};
  }
  Findings findings{
      {Level::kOk, "endpoint",
       fmt::format("{} answers in {} (region {})", url, FormatDuration(SystemClock().Now() - started), settings.region),
       ""}};
  findings.push_back(jobs::CheckClock(SystemClock().Wall(), response->headers.Get("Date")));
  return findings;
}

/// Lists one key below the URL. This needs the endpoint, credentials, rights and the bucket.
Finding CheckUrl(object::Connection& connection, const std::string& url, std::stop_token stop) {
  auto list = [&]() -> Result<object::ListPage> {
    object::Location location = MR_TRY(object::Locate(connection, url));
    return object::List(*location.store, {.prefix = location.key, .max_keys = 1},
                        {.stop = stop, .deadline = Deadline::After(SystemClock(), 4 * kPatience)});
  };
  auto page = list();
  if (!page) return {Level::kFail, "url", page.error().Context(url).ToString(), ""};  // the message has the advice
  return {Level::kOk, "url",
          fmt::format("{} can be listed{}", url, page->objects.empty() ? " (there is nothing yet)" : ""), ""};
}

/// Checks whether the store honours conditional writes. Writes a small object and removes it.
Finding CheckConditions(object::Connection& connection, const std::string& url, std::stop_token stop) {
  auto probe = [&]() -> Result<object::ConditionSupport> {
    object::Location location = MR_TRY(object::Locate(connection, url));
    location.key.resize(location.key.rfind('/') + 1);  // the URL may name an object or a pattern
    return object::ProbeConditions(*location.store, location.key, {.stop = stop});
  };
  const auto support = probe();
  if (!support) {
    return {Level::kWarn, "conditions",
            fmt::format("{}: cannot check conditional writes ({})", url, support.error().ToString()),
            "checkpoints and mounts that write need the rights to put and to delete"};
  }
  if (*support == object::ConditionSupport::kHonoured)
    return {Level::kOk, "conditions", fmt::format("{}: conditional writes work", url), ""};
  const char* fault = *support == object::ConditionSupport::kIgnored ? "ignores If-None-Match and If-Match"
                                                                     : "refuses If-Match although it holds";
  return {Level::kFail, "conditions", fmt::format("{}: the store {}", url, fault),
          "use this store for data and for mounts with --read-only; save checkpoints in another one"};
}

bool IsS3(const std::string& text) {
  auto url = object::ParseUrl(text);
  return url && url->scheme == object::Url::Scheme::kS3;
}

}  // namespace

Findings CheckStores(const Context& context, const RequiredFeatures& needs) {
  object::ConnectOptions options = context.globals.connect;
  options.max_attempts = 2;
  options.log = context.log();
  const bool s3 = std::any_of(needs.urls.begin(), needs.urls.end(), IsS3);
  const Level level = s3 ? Level::kFail : Level::kWarn;
  Findings findings;
  auto profiles = Profiles::Load(Environment::System());
  if (!profiles) {
    findings.push_back({level, "settings", profiles.error().ToString(), "correct the file, or remove it"});
  } else if (auto settings = Settings::Resolve(options, *profiles, Environment::System()); !settings) {
    findings.push_back({level, "settings", settings.error().ToString(), ""});
  } else {
    const FoundKeys keys = CheckCredentials(*settings, *profiles, options, s3, context.stop);
    findings.push_back(keys.finding);
    if (s3 || !settings->aws) {
      Findings answers = CheckEndpoint(*settings, context.stop);
      const bool answered = answers.front().level == Level::kOk;
      std::ranges::move(answers, std::back_inserter(findings));
      if (answered && keys.credentials) findings.push_back(CheckSignature(*settings, *keys.credentials, context.stop));
    }
  }
  if (needs.urls.empty()) return findings;
  auto connection = object::OpenConnection(options);
  if (!connection) {
    findings.push_back({Level::kFail, "url", connection.error().ToString(), ""});
    return findings;
  }
  for (const std::string& url : needs.urls) {
    findings.push_back(CheckUrl(**connection, url, context.stop));
    if (IsS3(url) && findings.back().level == Level::kOk)
      findings.push_back(CheckConditions(**connection, url, context.stop));
  }
  return findings;
}

}  // namespace millrace::cli
