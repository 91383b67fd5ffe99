variable "name" {
  description = "The name of the cluster and of what is made for it."
  type        = string
  default     = "millrace"
}

variable "kubernetes_version" {
  description = "Millrace needs 1.31 or newer."
  type        = string
  default     = "1.33"
}

variable "subnet_ids" {
  description = "Subnets in two zones or more, as EKS wants; the nodes are in the first. They need ways to EKS, images and buckets."
  type        = list(string)
  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "EKS wants subnets in at least two zones."
  }
}

variable "api_networks" {
  description = "Networks that may reach the cluster's API from outside, as CIDR. None: the API is private."
  type        = list(string)
  default     = []
}

variable "nodes" {
  description = "How many machines."
  type        = number
  default     = 2
}

variable "instance_type" {
  description = "The type of the machines."
  type        = string
  default     = "g5.2xlarge"
}

variable "ami_type" {
  description = "EKS's image: AL2023_x86_64_NVIDIA for GPUs, AL2023_x86_64_STANDARD without."
  type        = string
  default     = "AL2023_x86_64_NVIDIA"
}

variable "spot" {
  description = "Spot machines: cheaper, and they can be taken away. Jobs go on from their newest checkpoint."
  type        = bool
  default     = false
}

variable "volume_size_gib" {
  description = "The size of each machine's disk."
  type        = number
  default     = 200
}

variable "buckets" {
  description = "Buckets that the pods of jobs may read and write."
  type        = list(string)
}

variable "namespace" {
  description = "Where jobs run; deploy/kubernetes makes it."
  type        = string
  default     = "millrace"
}
