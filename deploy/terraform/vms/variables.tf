variable "name" {
  description = "The name of the cluster and of what is made for it."
  type        = string
  default     = "millrace"
}

variable "nodes" {
  description = "How many machines."
  type        = number
  default     = 2
}

variable "subnet_id" {
  description = "The subnet of the machines. They need a way to the buckets: a gateway endpoint for S3, or a NAT gateway."
  type        = string
}

variable "ami_id" {
  description = "An image of the distribution that the packages were made on, with the AWS command line."
  type        = string
}

variable "instance_type" {
  description = "The type of the machines."
  type        = string
  default     = "g5.2xlarge"
}

variable "key_name" {
  description = "The EC2 key pair for ssh."
  type        = string
}

variable "ssh_networks" {
  description = "Networks that may reach the machines by ssh, as CIDR. None: only the machines themselves."
  type        = list(string)
  default     = []
}

variable "volume_size_gib" {
  description = "The size of each machine's disk."
  type        = number
  default     = 200
}

variable "buckets" {
  description = "Buckets that the machines may read and write; that of the packages too."
  type        = list(string)
}

variable "packages" {
  description = "As in the module node."
  type        = string
}

variable "environment" {
  description = "As in the module node."
  type        = map(string)
  default     = {}
}

variable "mounts" {
  description = "As in the module node."
  type = map(object({
    url       = string
    directory = string
    flags     = optional(list(string), [])
  }))
  default = {}
}
