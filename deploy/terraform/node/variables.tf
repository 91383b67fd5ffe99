variable "packages" {
  description = "Bucket folder (s3://…) with the Debian packages of `make package`, or a folder on the machine."
  type        = string
  validation {
    condition     = can(regex("^(s3://[A-Za-z0-9._/-]+|/[A-Za-z0-9._/-]+)$", var.packages))
    error_message = "packages must be s3://BUCKET/FOLDER or an absolute path, of letters, digits, and the characters . _ / -"
  }
}

variable "environment" {
  description = "Variables of the mounts' daemons, such as AWS_REGION. No secrets: whoever may read the machine's user data reads them."
  type        = map(string)
  default     = {}
  validation {
    condition     = alltrue([for name, value in var.environment : can(regex("^[A-Za-z_][A-Za-z0-9_]*$", name)) && can(regex("^[^\"\\\\$`\\n]*$", value))])
    error_message = "environment must have names of letters, digits and _, and values without quotation marks, \\, $, ` and line ends."
  }
}

variable "mounts" {
  description = "The buckets that each machine mounts, by name."
  type = map(object({
    url       = string
    directory = string
    flags     = optional(list(string), [])
  }))
  default = {}
  validation {
    condition = alltrue([for name, mount in var.mounts : can(regex("^[A-Za-z0-9_]+$", name)) && name != "node" &&
      can(regex("^/[^\\s\"'\\\\$`]+$", mount.directory)) && alltrue([for word in concat([mount.url], mount.flags) :
    can(regex("^[^\\s\"'\\\\$`]+$", word))])])
    error_message = "mounts must have names of letters, digits and _ (not \"node\"), absolute directories, and no spaces, quotation marks, \\, $ and `."
  }
}

variable "check_urls" {
  description = "Buckets whose stores must answer for a machine to be fit for jobs."
  type        = list(string)
  default     = []
  validation {
    condition     = alltrue([for url in var.check_urls : can(regex("^[^\\s\"'\\\\$`]+$", url))])
    error_message = "check_urls must have no spaces, quotation marks, \\, $ and `."
  }
}
