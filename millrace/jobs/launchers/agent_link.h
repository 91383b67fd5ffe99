// An agent's input and output over TCP, for machines that nothing else joins to the supervisor: the pods of a job.
//
//   supervisor ⇄ pipes ⇄ `job agent --connect` ⇄ TLS ⇄ `job agent --listen` ⇄ node agent ⇄ ranks
//
// TLS 1.3 with a pre-shared key (RFC 8446, 2.2) encrypts the connection. Each side proves that it has the key. There
// are no certificates.
#pragma once

#include <filesystem>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/result.h"

namespace millrace::jobs {

/// Reads a key of 16 to 256 bytes. A newline at its end does not count.
/// Errors: kInvalidArgument if the key has another length; those of reading the file.
Result<std::string> ReadAgentKey(const std::filesystem::path& file);

/// Serves a node agent (RunNodeAgent) on host:port, to one supervisor at a time. Connections that do not prove the key
/// within 10 s are dropped, the oldest ones sooner if there are many, and do not keep the supervisor out. When a
/// connection ends, its ranks are killed; then the next supervisor is served. Calls `listening` with the port first.
///
/// When `stop` fires, the ranks get SIGTERM and the agent takes no further orders. Returns kCancelled when the ranks
/// have ended.
/// Blocks. Errors: kInvalidArgument or kIo if it cannot listen there.
Status ListenAsAgent(std::string_view listen, const std::string& key, const std::function<void(int port)>& listening,
                     std::stop_token stop);

/// Connects to an agent that listens and joins it to descriptors `in` and `out`, as if it ran here. Returns when one of
/// the two has ended. Blocks.
/// Errors: kUnavailable if nobody answers at `address` ("host:port") within `timeout`; kPermissionDenied if the agent
/// has another key.
Status ConnectToAgent(std::string_view address, const std::string& key, int in, int out, Duration timeout);

}  // namespace millrace::jobs
