# Machines for `run.launcher: ssh`, or for a Slurm of yours: instances in one placement group, a role for buckets, mounts by systemd.
terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0, < 7.0"
    }
  }
}

data "aws_subnet" "this" {
  id = var.subnet_id
}

module "node" {
  source      = "../node"
  packages    = var.packages
  environment = var.environment
  mounts      = var.mounts
  check_urls  = [for bucket in var.buckets : "s3://${bucket}"]
}

resource "aws_iam_role" "node" {
  name_prefix = "${var.name}-"
  assume_role_policy = jsonencode({
    Version   = "2012-10-17"
    Statement = [{ Effect = "Allow", Action = "sts:AssumeRole", Principal = { Service = "ec2.amazonaws.com" } }]
  })
}

resource "aws_iam_role_policy" "buckets" {
  name_prefix = "buckets-"
  role        = aws_iam_role.node.id
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

resource "aws_iam_instance_profile" "node" {
  name_prefix = "${var.name}-"
  role        = aws_iam_role.node.name
}

# Machines reach each other on all ports; from elsewhere ssh alone, from the networks that are named.
resource "aws_security_group" "node" {
  name_prefix = "${var.name}-"
  description = "Nodes of ${var.name}"
  vpc_id      = data.aws_subnet.this.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "nodes" {
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  for_each          = toset(var.ssh_networks)
  security_group_id = aws_security_group.node.id
  cidr_ipv4         = each.value
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.node.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_placement_group" "this" {
  name     = var.name
  strategy = "cluster"
}

resource "aws_instance" "node" {
  count                       = var.nodes
  ami                         = var.ami_id
  instance_type               = var.instance_type
  subnet_id                   = var.subnet_id
  key_name                    = var.key_name
  iam_instance_profile        = aws_iam_instance_profile.node.name
  vpc_security_group_ids      = [aws_security_group.node.id]
  placement_group             = aws_placement_group.this.id
  user_data                   = module.node.user_data
  user_data_replace_on_change = false

  metadata_options {
    http_tokens = "required"
  }

  root_block_device {
    volume_size = var.volume_size_gib
    volume_type = "gp3"
    encrypted   = true
  }

  tags = { Name = "${var.name}-${count.index}" }
}
