"""The keys of Kubernetes objects as of 1.37, without those that `pods.py` declares.

CEL compares two objects key by key, but it compares a key that the schema does not declare only if both objects have
it: replacing one undeclared key by another is not a change. So the schema declares these keys and accepts any value for
them. Two changes remain undetected: an undeclared key that replaces another one, and a null that moves from one key to
another.
https://github.com/kubernetes/kubernetes/blob/v1.36.3/staging/src/k8s.io/apiserver/pkg/cel/common/valuesunstructured.go
"""

TEMPLATE_METADATA = (
    "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName", "generation",
    "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
)  # fmt: skip
POD_SPEC = (
    "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "dnsConfig", "dnsPolicy", "enableServiceLinks",
    "ephemeralContainers", "evictionResponders", "hostIPC", "hostNetwork", "hostPID", "hostUsers", "hostname",
    "hostnameOverride", "imagePullSecrets", "nodeName", "nodeSelector", "os", "overhead", "preemptionPolicy",
    "priority", "priorityClassName", "readinessGates", "resourceClaims", "resources", "restartPolicy",
    "runtimeClassName", "schedulerName", "schedulingGates", "schedulingGroup", "securityContext", "serviceAccount",
    "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain", "terminationGracePeriodSeconds",
)  # fmt: skip
CONTAINER = (
    "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "ports",
    "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
    "startupProbe", "stdin", "stdinOnce", "terminationMessagePath", "terminationMessagePolicy", "tty", "volumeDevices",
    "volumeMounts", "workingDir",
)  # fmt: skip
VOLUME = (
    "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI", "emptyDir",
    "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath", "image",
    "iscsi", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected", "quobyte", "rbd",
    "scaleIO", "secret", "storageos", "vsphereVolume",
)  # fmt: skip
VOLUME_MOUNT = ("bindMountOptions", "mountPropagation", "readOnly", "recursiveReadOnly", "subPathExpr")
ENV_SOURCE = ("optional",)
