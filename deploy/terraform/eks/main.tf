# A cluster for `run.launcher: kubernetes`: control plane, one node group, and a role by which the pods of jobs reach their buckets.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0, < 7.0"
    }
  }
}

locals {
  # What the nodes must do as nodes: join, give pods addresses, pull images. Buckets are not among it.
  node_policies = ["AmazonEKSWorkerNodePolicy", "AmazonEKS_CNI_Policy", "AmazonEC2ContainerRegistryReadOnly"]
}

resource "aws_iam_role" "cluster" {
  name_prefix = "${var.name}-cluster-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "eks.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "this" {
  name     = var.name
  role_arn = aws_iam_role.cluster.arn
  version  = var.kubernetes_version

  vpc_config {
    subnet_ids              = var.subnet_ids
    endpoint_private_access = true
    endpoint_public_access  = length(var.api_networks) > 0
    public_access_cidrs     = length(var.api_networks) > 0 ? var.api_networks : null
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  # Without the policy, removal would leave network interfaces behind.
  depends_on = [aws_iam_role_policy_attachment.cluster]
}

resource "aws_iam_role" "node" {
  name_prefix = "${var.name}-node-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each   = toset(local.node_policies)
  role       = aws_iam_role.node.name
  policy_arn = "arn:aws:iam::aws:policy/${each.value}"
}

resource "aws_eks_node_group" "this" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "${var.name}-train"
  node_role_arn   = aws_iam_role.node.arn
  # Ranks exchange gradients: one zone.
  subnet_ids     = [var.subnet_ids[0]]
  instance_types = [var.instance_type]
  ami_type       = var.ami_type
  capacity_type  = var.spot ? "SPOT" : "ON_DEMAND"
  disk_size      = var.volume_size_gib

  scaling_config {
    min_size     = 0
    desired_size = var.nodes
    max_size     = max(var.nodes, 1)
  }

  update_config {
    max_unavailable = 1
  }

  depends_on = [aws_iam_role_policy_attachment.node]
}

# Pod Identity: the service account of jobs has the role, and needs no annotation and no secret.
resource "aws_eks_addon" "pod_identity" {
  cluster_name = aws_eks_cluster.this.name
  addon_name   = "eks-pod-identity-agent"
}

resource "aws_iam_role" "job" {
  name_prefix = "${var.name}-job-"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = ["sts:AssumeRole", "sts:TagSession"]
      Principal = { Service = "pods.eks.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "buckets" {
  name_prefix = "buckets-"
  role        = aws_iam_role.job.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      { Effect = "Allow", Action = ["s3:ListBucket", "s3:ListBucketMultipartUploads"], Resource = [for bucket in var.buckets : "arn:aws:s3:::${bucket}"] },
      {
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
        Resource = [for bucket in var.buckets : "arn:aws:s3:::${bucket}/*"]
      },
    ]
  })
}

resource "aws_eks_pod_identity_association" "job" {
  cluster_name    = aws_eks_cluster.this.name
  namespace       = var.namespace
  service_account = "millrace-job"
  role_arn        = aws_iam_role.job.arn
}
