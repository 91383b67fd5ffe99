#include "millrace/s3d/server.h"

#include <algorithm>
#include <atomic>

#include "millrace/base/hash/random.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/server.h"
#include "millrace/s3d/fault.h"
#include "millrace/s3d/operations/dispatch.h"
#include "millrace/s3d/operations/documents.h"
#include "millrace/s3d/protocol/policy.h"
#include "millrace/s3d/protocol/signature.h"
#include "millrace/s3d/storage/storage.h"

namespace millrace::s3d {
namespace {

Authenticator::Anonymous WhoIsAnonymous(const Options& options) {
  if (!options.anonymous) return Authenticator::Anonymous::kRefused;
  return options.insecure ? Authenticator::Anonymous::kAnyHost : Authenticator::Anonymous::kThisMachine;
}

}  // namespace

struct Server::Rep {
  Rep(Options opts, std::unique_ptr<Storage> stored, std::shared_ptr<FaultPlan> faults, std::unique_ptr<Policy> rights)
      : options(std::move(opts)),
        clock(options.clock ? *options.clock : SystemClock()),
        storage(std::move(stored)),
        authenticator({options.access_key, options.secret_key}, WhoIsAnonymous(options), clock),
        policy(std::move(rights)),
        fault_plan(std::move(faults)) {}

  void Handle(http::ServerRequest& request, http::ServerResponse& response);
  Reply<void> Serve(const Route& route, const Target& target, const QueryParameters& query,
                    const std::string& request_id, http::ServerRequest& request, http::ServerResponse& response,
                    const Fault& fault, OddityMemory& memory);
  void Answer(const S3Error& error, const std::string& request_id, const http::ServerRequest& request,
              http::ServerResponse& response);

  const Options options;
  Clock& clock;
  std::unique_ptr<Storage> storage;
  const Authenticator authenticator;
  const std::unique_ptr<const Policy> policy;  ///< null: everything is allowed
  std::atomic<std::uint64_t> next_request = Mix64(SystemEntropy());
  Mutex fault_mutex;
  std::shared_ptr<FaultPlan> fault_plan MR_GUARDED_BY(fault_mutex);
  std::unique_ptr<http::Server> http;  ///< last: its threads use all of the above
};

Result<std::unique_ptr<Server>> Server::Start(Options options) {
  std::shared_ptr<FaultPlan> faults = MR_TRY(FaultPlan::Parse(options.fault));
  if (options.anonymous && !options.insecure && !http::IsLoopbackHost(http::HostOfAuthority(options.listen))) {
    return Fail(Code::kInvalidArgument,
                "{} can be reached from other machines, and with --anonymous everybody there could read and write: "
                "leave --anonymous out, listen on 127.0.0.1, or give --insecure",
                options.listen);
  }
  std::unique_ptr<Policy> policy;
  if (!options.policy.empty()) policy = MR_TRY(Policy::Parse(options.policy));
  Clock& clock = options.clock ? *options.clock : SystemClock();
  auto storage = MR_TRY(Storage::Open(options.root, options.sync, clock));
  http::Server::Options http{.listen = options.listen, .max_connections = options.max_connections, .log = options.log};
  auto rep = std::make_unique<Rep>(std::move(options), std::move(storage), std::move(faults), std::move(policy));
  rep->http = MR_TRY(http::Server::Start(
      std::move(http), [rep = rep.get()](auto& request, auto& response) { rep->Handle(request, response); }));
  return std::unique_ptr<Server>(new Server(std::move(rep)));
}

Server::Server(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Server::~Server() = default;
int Server::port() const { return rep_->http->port(); }
std::string Server::address() const { return rep_->http->address(); }
std::string Server::endpoint() const { return "http://" + address(); }
void Server::Stop(Duration grace) { rep_->http->Stop(grace); }

Status Server::CreateBucket(std::string_view name) {
  auto made = rep_->storage->CreateBucket(name);
  if (made) return {};
  Code code = made.error().status == 409 ? Code::kAlreadyExists : CodeFromHttpStatus(made.error().status);
  return Fail(code, "bucket {}: {}", name, made.error().message);
}

std::set<std::string> Server::used_actions() const {
  return rep_->policy ? rep_->policy->used() : std::set<std::string>();
}

Status Server::SetFaults(std::string_view spec) {
  std::shared_ptr<FaultPlan> plan = MR_TRY(FaultPlan::Parse(spec));
  MutexLock lock(rep_->fault_mutex);
  rep_->fault_plan = std::move(plan);
  return {};
}

void Server::Rep::Answer(const S3Error& error, const std::string& request_id, const http::ServerRequest& request,
                         http::ServerResponse& response) {
  options.log.Debug("request failed", {{"method", request.method()},
                                       {"path", request.path()},
                                       {"code", error.code},
                                       {"message", error.message},
                                       {"request_id", request_id}});
  if (response.started()) return response.Abort(false);
  http::Headers headers;
  headers.Set("x-amz-request-id", request_id);
  headers.Set("Content-Type", "application/xml");
  if (!error.region_header.empty()) headers.Set("x-amz-bucket-region", error.region_header);
  if (!error.location.empty()) headers.Set("Location", error.location);
  (void)response.Send(error.status, std::move(headers), AsBytes(ErrorDocument(error, request.path(), request_id)));
}

void Server::Rep::Handle(http::ServerRequest& request, http::ServerResponse& response) {
  std::string request_id = fmt::format("{:016X}", next_request.fetch_add(1));
  auto fail = [&](const S3Error& error) { Answer(error, request_id, request, response); };

  auto query = http::ParseQuery(request.query());
  if (!query) return fail(S3Error("InvalidURI", "Couldn't parse the specified URI."));
  auto target = ParseTarget(request);
  if (!target) return fail(target.error());
  auto route = FindRoute(request, *target, *query);
  if (!route) return fail(route.error());

  const std::shared_ptr<FaultPlan> plan = [&] {
    MutexLock lock(fault_mutex);
    return fault_plan;
  }();
  Fault fault = plan->Decide((*route)->name, target->bucket, target->key);
  if (fault.latency.count() > 0 && !clock.SleepFor(fault.latency, request.stop())) return response.Abort(false);
  std::unique_ptr<http::ServerResponse> odd;
  if (fault.oddities.any()) odd = MakeOdd(fault.oddities, (*route)->name, request, response);
  http::ServerResponse& answer = odd ? *odd : response;
  auto fail_oddly = [&](const S3Error& error) { Answer(error, request_id, request, answer); };
  if (fault.error) return fail_oddly(*fault.error);
  if (fault.disconnect == Fault::Disconnect::kBeforeOperation) return response.Abort(true);

  Reply<void> served;
  const bool spaced = fault.white_space.count() > 0 && IsServerWork((*route)->name);
  if (fault.bytes_per_second == 0 && fault.disconnect == Fault::Disconnect::kNone && !fault.damage && !spaced) {
    served = Serve(**route, *target, *query, request_id, request, answer, fault, plan->memory());
  } else {
    auto slow_request = ApplyToRequest(fault, request, clock);
    if (!spaced) fault.white_space = {};
    auto faulty_response = ApplyToResponse(fault, answer, request.stop(), clock);
    served = Serve(**route, *target, *query, request_id, *slow_request, *faulty_response, fault, plan->memory());
  }
  if (!served) fail_oddly(served.error());
}

Reply<void> Server::Rep::Serve(const Route& route, const Target& target, const QueryParameters& query,
                               const std::string& request_id, http::ServerRequest& request,
                               http::ServerResponse& response, const Fault& fault, OddityMemory& memory) {
  if (fault.oddities.any()) MR_TRY(AdmitOddly(fault.oddities, memory, request));
  Authenticated who = MR_TRY(authenticator.Check(request, query, ClockAhead(fault.oddities)));
  if (policy) {
    const auto prefix = std::ranges::find_if(query, [](const auto& field) { return field.first == "prefix"; });
    MR_TRY(policy->Check({.operation = route.name,
                          .bucket = target.bucket,
                          .key = target.key,
                          .prefix = prefix == query.end() ? nullptr : &prefix->second,
                          .copy_source = route.copies ? request.headers().Get("x-amz-copy-source") : ""}));
  }
  auto run = [&](const Route& with, const QueryParameters& fields, http::ServerRequest& from,
                 http::ServerResponse& to) {
    OperationContext context{from,
                             to,
                             *storage,
                             who,
                             fields,
                             target.bucket,
                             target.key,
                             request_id,
                             options.min_part_bytes,
                             fault.unconditional,
                             policy.get()};
    return with.run(context);
  };
  Reply<void> served = fault.oddities.any() ? ServeOddly({fault.oddities, route, query, request, response}, run)
                                            : run(route, query, request, response);
  if (!served && served.error().code == "NoSuchKey" && policy && policy->HidesAbsence(target.bucket)) {
    return Refuse("AccessDenied", "Access Denied");
  }
  return served;
}

}  // namespace millrace::s3d
